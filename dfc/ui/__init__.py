"""The face `/ui`: pages for browsers. They show and do only what the API does as well, by the same use cases and checks."""
