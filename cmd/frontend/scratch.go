package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// scratchName begins the folders of `frontend up`; scratchLock is the file in one that its process holds a lock on.
const (
	scratchName = "tandem-up-"
	scratchLock = "lock"
)

// newScratch makes a folder for the workers' files in parent, after it has removed those of processes that were killed. release
// removes it.
func newScratch(parent string) (dir string, release func(), err error) {
	sweepScratch(parent)
	if dir, err = os.MkdirTemp(parent, scratchName); err != nil {
		return "", nil, fmt.Errorf("no place for the workers' files: %w", err)
	}
	// The file has its name only once it is locked, so that nobody takes the folder for a leftover.
	lock, err := os.OpenFile(filepath.Join(dir, scratchLock+".new"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err == nil {
		if err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			err = os.Rename(lock.Name(), filepath.Join(dir, scratchLock))
		}
	}
	release = func() {
		_ = os.RemoveAll(dir) // the next start removes what stays
		_ = lock.Close()
	}
	if err != nil {
		release()
		return "", nil, fmt.Errorf("lock the folder of the workers' files: %w", err)
	}
	return dir, release, nil
}

// sweepScratch removes folders that this user's processes left behind. Whoever still lives has the lock.
func sweepScratch(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, scratchName+"*"))
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() {
			continue // a link leads to who knows where
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Getuid() {
			continue
		}
		lock, err := os.OpenFile(filepath.Join(dir, scratchLock), os.O_RDWR|syscall.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir) // it is tried again at the next start
		}
		_ = lock.Close()
	}
}
