module go.uber.org/automaxprocs

go 1.25.11
