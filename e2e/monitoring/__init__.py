"""The dashboard's description, a picture of it from a real Prometheus, and the tests of dashboard and alerts."""
