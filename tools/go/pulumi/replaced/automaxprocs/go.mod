// Takes the place of a module whose only function the CLI calls at the start of main (docs/adr/0058).
module go.uber.org/automaxprocs

go 1.25.11
