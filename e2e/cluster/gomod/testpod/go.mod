module kvloop.io/e2e/cluster/testpod

go 1.25.0
