"""The API: models of the custom resource, the tables beside them, and the router's contract. Imports pydantic only."""
