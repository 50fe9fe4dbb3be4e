"""The pages, a module for each subject: handlers that ask a use case and render a template."""
