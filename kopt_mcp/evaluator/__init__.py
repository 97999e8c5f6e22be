"""The evaluator: a trusted harness, an untrusted runner, and the client that the server uses.

Everything here but `client` needs the standard library and torch only, so that it runs under the user's own
interpreter.
"""
