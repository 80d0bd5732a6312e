// Package maxprocs lets a process of the Pulumi CLI start before it is known what it shall run.
//
// The CLI calls Set first, after the initialization of all its packages. The original Set sets GOMAXPROCS to the CPU
// limit of the control group, which Go's runtime does itself since Go 1.25.
package maxprocs

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
)

// Variable names a descriptor of a connected socket. Without it the CLI starts as usual.
const Variable = "HERDSMAN_CLI_WAITS"

type order struct {
	Arguments []string `json:"arguments"`
	Directory string   `json:"directory"`
}

// Set waits for an order if Variable is set, and makes the order's arguments and directory those of the process. The
// process ends if the socket is closed before an order was received.
func Set(...any) (func(), error) {
	if value, found := os.LookupEnv(Variable); found {
		if err := wait(value); err != nil {
			fmt.Fprintln(os.Stderr, "error: no order for a CLI that was started ahead:", err)
			os.Exit(1)
		}
	}
	return func() {}, nil
}

func wait(descriptor string) error {
	number, err := strconv.Atoi(descriptor)
	if err != nil {
		return err
	}
	socket := os.NewFile(uintptr(number), "orders")
	defer socket.Close()
	if _, err := socket.WriteString("ready\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(socket).ReadBytes('\n')
	if err != nil {
		return err
	}
	var received order
	if err := json.Unmarshal(line, &received); err != nil {
		return err
	}
	if err := os.Chdir(received.Directory); err != nil {
		return err
	}
	os.Args = append(os.Args[:1], received.Arguments...)
	return os.Unsetenv(Variable)
}
