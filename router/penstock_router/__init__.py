"""The endpoint data plane: one port an endpoint, requests shared among backends and their pods."""
