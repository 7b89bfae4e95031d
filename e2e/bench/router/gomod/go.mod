module kvloop.io/e2e/bench/router

go 1.26
