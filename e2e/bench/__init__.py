"""What the parts cost: ``python -m e2e.bench [part]``. Times are of the machine they were measured on; ratios hold."""
