"""The API: models of the custom resource, the tables beside them, the CRD made of them, and the router's contract.

Imports pydantic only, but for two modules that no other one imports: `generate` (PyYAML) and `validate` (extra `cli`).
"""
