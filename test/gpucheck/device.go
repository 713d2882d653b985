//go:build cuda

package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"tandem/engine/cuda/gemm"
	"tandem/engine/cuda/gpu"
	"tandem/engine/cuda/measure"
	"tandem/test/gpucheck/report"
)

// emulatorName is what the emulator's devices are called.
const emulatorName = "CUDA emulator"

func init() {
	commands["machine"] = machineCommand
	commands["measure"] = measureCommand
	commands["engine"] = engineCommand
}

// machineCommand says what there is.
func machineCommand(out io.Writer, _ []string) error {
	devices, err := gpu.Devices()
	if err != nil {
		return err
	}
	info := devices[0]
	free, err := freeMemory()
	if err != nil {
		return err
	}
	library := "no cuBLASLt, so own products"
	switch err := gemm.Load(); {
	case err == nil:
		v := gemm.Version()
		library = fmt.Sprintf("cuBLASLt %d.%d.%d", v/10000, v/100%100, v%100)
	case !errors.Is(err, gemm.ErrAbsent):
		return err
	default:
		fmt.Fprintln(os.Stderr, err)
	}
	return report.Line{
		Step: report.Machine, Device: info.String(), Emulator: info.Name == emulatorName,
		Note: fmt.Sprintf("%.1f GiB are free, %d multiprocessors, driver for CUDA %d.%d, %s, %d devices",
			float64(free)/(1<<30), info.Multi, info.Driver/1000, info.Driver%1000/10, library, len(devices)),
	}.Write(out)
}

// freeMemory is that of the first device.
func freeMemory() (free int64, err error) {
	d, err := gpu.Open(0)
	if err != nil {
		return 0, err
	}
	err = d.Do(func() error {
		free, _, err = d.MemInfo()
		return err
	})
	return free, errors.Join(err, d.Close())
}

// measureCommand times the pieces.
func measureCommand(out io.Writer, _ []string) error {
	sizes := measure.Full()
	if tiny() {
		sizes = measure.Tiny()
	}
	var wrote error
	err := measure.Run(0, sizes, func(r measure.Result) {
		wrote = errors.Join(wrote, report.Line{Step: report.Measure, Result: r}.Write(out))
	})
	return errors.Join(err, wrote)
}
