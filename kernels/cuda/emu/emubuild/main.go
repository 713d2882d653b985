// Command emubuild builds the CUDA emulator of kernels/cuda, or of the kernel sources given as
// arguments, and prints the variables that point the engine to it.
package main

import (
	"fmt"
	"os"

	"tandem/kernels/cuda/emu"
)

func main() {
	lib, err := emu.Build(os.Args[1:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, kv := range lib.Env() {
		fmt.Println(kv)
	}
}
