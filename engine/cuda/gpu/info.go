//go:build cuda

package gpu

/*
#include "companion.h"
*/
import "C"

import (
	"fmt"

	"gorgonia.org/cu"

	"tandem/kernels/cuda/drv"
)

// Info describes a device.
type Info struct {
	Ordinal     int
	Name        string
	UUID        string // "GPU-…" as nvidia-smi prints it
	Bus         string // PCI address, such as 0000:3b:00.0
	Capability  int    // compute capability, 10 x major + minor
	Multi       int    // multiprocessors
	Total       int64  // memory in bytes
	Shared      int    // bytes of shared memory that a block may ask for
	L2          int    // bytes of the second-level cache
	MaxThreads  int    // threads of a block
	Integrated  bool   // shares its memory with the host
	CopyEngines int
	Driver      int // version of the driver's interface, 1000 x major + 10 x minor
}

// Devices describes all devices that the driver shows, in its order. An empty machine gives an
// error that wraps [ErrNoDevice]. It may be called on any goroutine.
func Devices() ([]Info, error) {
	if err := drv.Load(); err != nil {
		return nil, err
	}
	n, err := cu.NumDevices()
	if err != nil {
		return nil, wrap(err, "count devices")
	}
	if n == 0 {
		return nil, fmt.Errorf("%w: the driver shows none (is CUDA_VISIBLE_DEVICES empty?)", ErrNoDevice)
	}
	out := make([]Info, n)
	for i := range out {
		if out[i], err = describe(i); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func describe(ordinal int) (Info, error) {
	op := fmt.Sprintf("describe device %d", ordinal)
	dev, err := cu.GetDevice(ordinal)
	if err != nil {
		return Info{}, wrap(err, "%s", op)
	}
	info := Info{Ordinal: ordinal, Driver: cu.Version()}
	if info.Name, err = dev.Name(); err != nil {
		return info, wrap(err, "%s", op)
	}
	if info.Total, err = dev.TotalMem(); err != nil {
		return info, wrap(err, "%s", op)
	}
	if id, err := dev.UUID(); err == nil {
		info.UUID = "GPU-" + id.String()
	}
	var bus [32]C.char
	if C.cuDeviceGetPCIBusId(&bus[0], C.int(len(bus)), C.CUdevice(dev)) == C.CUDA_SUCCESS {
		info.Bus = C.GoString(&bus[0])
	}
	var major, minor, integrated int
	for _, a := range []struct {
		attribute cu.DeviceAttribute
		to        *int
	}{
		{cu.ComputeCapabilityMajor, &major},
		{cu.ComputeCapabilityMinor, &minor},
		{cu.MultiprocessorCount, &info.Multi},
		{C.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &info.Shared},
		{cu.L2CacheSize, &info.L2},
		{cu.MaxThreadsPerBlock, &info.MaxThreads},
		{cu.Integrated, &integrated},
		{cu.AsyncEngineCount, &info.CopyEngines},
	} {
		if *a.to, err = dev.Attribute(a.attribute); err != nil {
			return info, wrap(err, "%s, attribute %d", op, a.attribute)
		}
	}
	info.Capability, info.Integrated = 10*major+minor, integrated != 0
	return info, nil
}

// String is one line for logs.
func (i Info) String() string {
	return fmt.Sprintf("%d: %s, %.1f GiB, compute capability %d.%d, %s",
		i.Ordinal, i.Name, float64(i.Total)/(1<<30), i.Capability/10, i.Capability%10, i.Bus)
}
