"""The Helm charts, what is made from them, and their tests. Helm is built from Go modules as the cluster is."""
