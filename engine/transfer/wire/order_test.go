package wire

import (
	"sync"
	"testing"
	"time"

	pb "tandem/engine/transfer/transferpb"
)

// Leases end while pullers of both styles attach: nobody waits for a lock whose owner waits for his.
func TestAttachBesideRevoke(t *testing.T) {
	srv, err := Listen(Config{Incarnation: "ctx-1"})
	if err != nil {
		t.Fatal(err)
	}
	srv.Rank(0, newPool(4, testLayout.BlockBytes()), func(any) {})
	var revokers, pullers sync.WaitGroup
	stop, done := make(chan struct{}), make(chan struct{})
	for range 2 {
		revokers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					srv.revoke(7, nil)
				}
			}
		})
	}
	for range 8 {
		pullers.Go(func() {
			for i := range 2000 {
				ss := srv.open()
				if err := ss.handle(&pb.PullerMessage{Kind: &pb.PullerMessage_Attach{Attach: &pb.Attach{
					Id: 7, Incarnation: "ctx-1", Layout: encodeLayout(testLayout), GenFirst: i%4 > 0, Prompt: make([]byte, hashBytes), PromptTokens: 9,
				}}}); err != nil {
					t.Error(err)
				}
				ss.detach(nil)
				srv.forget(ss)
			}
		})
	}
	go func() { pullers.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("they wait for each other") // as would Close
	}
	close(stop)
	revokers.Wait()
	srv.Close()
}
