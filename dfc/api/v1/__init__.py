"""The face `/v1`: DFC's own API, in JSON or, if asked for, MessagePack."""
