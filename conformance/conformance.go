// Package conformance holds the suite that every [worklease.Backend] must pass. A
// backend's own test runs it:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, func(t *testing.T) worklease.Backend {
//			return mybackend.New(t.TempDir())
//		})
//	}
//
// Each case is a parallel subtest, named by the promise it holds the backend to,
// and gets a backend from newBackend. That may be the same one every time, and may
// hold other rows: the cases use work IDs of their own. Cases work on the Backend
// itself and through a [worklease.Lease] on it.
//
// The optional powers [worklease.Forgetter], [worklease.Waker] and
// [worklease.BatchRenewer] are tested where the backend has them.
//
// # Time
//
// What must lapse is ended by [EndLease] where that is given; without it the suite
// waits for short leases to end. A backend that follows package time, and has no
// sockets, runs [InBubbles], where waiting takes no time at all.
package conformance

import (
	"crypto/rand"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aetomala/worklease"
)

// Option tunes [Run]. A nil option is ignored.
type Option func(*config)

type config struct {
	bubbles  bool
	endLease func(t *testing.T, b worklease.Backend, workID string)
}

// InBubbles runs every case in a bubble of testing/synctest. newBackend is called
// inside it, and the backend must not use what is outside of it.
func InBubbles() Option {
	return func(c *config) { c.bubbles = true }
}

// EndLease tells the suite how to have the current lease of a work ID lapse at
// once, as if its time were over: for a table, by setting the expiry back.
func EndLease(end func(t *testing.T, b worklease.Backend, workID string)) Option {
	return func(c *config) { c.endLease = end }
}

// Run tests the backends that newBackend returns. newBackend may use t.Cleanup, and
// end the case with t.Fatal or t.Skip.
func Run(t *testing.T, newBackend func(t *testing.T) worklease.Backend, opts ...Option) {
	t.Helper()
	var c config
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	for _, one := range cases {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			run := func(t *testing.T) {
				one.run(&suite{T: t, b: newBackend(t), config: c, tag: rand.Text()[:8]})
			}
			if !c.bubbles {
				run(t)
				return
			}
			synctest.Test(t, func(t *testing.T) {
				// A bubble ends with its last goroutine, and what is given back in the
				// background takes some seconds. Its time stops when this function returns.
				defer time.Sleep(time.Minute)
				run(t)
			})
		})
	}
}

// cases is the table of contents.
var cases = []struct {
	name string
	run  func(*suite)
}{
	// The table of states and operations.
	{"Held_TheOwnerMayDoAll", heldOwner},
	{"Held_AcquireIsRefusedToAll", heldAcquire},
	{"Lapsed_CheckpointSavesAndExtends", lapsedCheckpoint},
	{"Lapsed_RenewDoesNotRevive", lapsedRenew},
	{"Lapsed_ReleaseSurrenders", lapsedRelease},
	{"Lapsed_ReadCheckpointStillReads", lapsedRead},
	{"Lapsed_AcquireIsGranted", lapsedAcquire},
	{"Surrendered_NothingMoreIsWritten", surrendered},
	{"Absent_EverythingIsFenced", absent},
	{"Superseded_EverythingIsFenced", superseded},

	{"T1_TokensRise", tokensRise},
	{"T1_TokensRiseAcrossForget", tokensRiseAcrossForget},
	{"T1_TokensRiseAcrossWorkIDs", tokensRiseAcrossWorkIDs},
	{"T1_OneWinnerAmongRacers", racers},
	{"T1_OneWinnerAmongRacingLeases", racingLeases},
	{"T2_TheWholeClaimMatches", wholeClaim},
	{"T2_IDsAreComparedByteByByte", idsByteByByte},
	{"T2_EqualHolderIDsAreNobody", equalHolders},
	{"T3_ARefusalDrawsNoToken", refusalDrawsNothing},

	{"W1_ARefusalSaysWhoAndHowLong", refusalTells},
	{"W1_AGrantCarriesThePrior", grantCarriesPrior},
	{"W2_AWaiterGetsWhatIsReleased", waiterGetsReleased},
	{"W2_AWaiterGetsWhatLapses", waiterGetsLapsed},
	{"W2_TheContextEndsAWait", contextEndsWait},
	{"W2_RetiredWorkEndsAWait", retiredEndsWait},
	{"W3_WatchersTakeTurns", watchersTakeTurns},
	{"W3_ALeaverHandsItsTurnOn", leaverHandsOn},
	{"W3_WhatWakesAWatcher", whatWakes},
	{"W6_WhatIsGivenBackLeavesNoTrace", undoLeavesNoTrace},
	{"W6_GivingBackMatchesTheAcquisition", undoMatches},
	{"W7_OwnNonceIsRecognised", ownNonce},
	{"W7_OwnNonceThatLapsedLeavesNoTrace", ownNonceLapsed},

	{"R2_RenewalKeepsALease", renewalKeeps},
	{"R2_ACheckpointExtends", checkpointExtends},
	{"R5_ARenewalThatIsFencedEnds", renewalFenced},
	{"R5_ARenewalThatIsExpiredEnds", renewalExpired},
	{"R7_ABatchHasAVerdictForEach", batchVerdicts},
	{"R7_AFullBatch", fullBatch},
	{"R9_ExtensionsAreByTheTTLOfTheRow", extensionByRowTTL},

	{"H1_PriorSaysHowTheLastOwnerLeft", priorExits},
	{"H1_PriorIsStable", priorIsStable},
	{"H1_PriorIsTheImmediatelyPreviousOwner", priorIsImmediate},
	{"H2_ReleaseFreesAtOnce", releaseFrees},
	{"H2_ReleaseSavesTheLastState", releaseSaves},
	{"H3_ReleaseWithACancelledContext", releaseCancelled},
	{"H5_ARenewalAfterReleaseChangesNothing", renewalAfterRelease},
	{"H6_ReleaseNeverTouchesASuccessor", releaseSparesSuccessor},
	{"Retired_UntilReopened", retiredUntilReopened},
	{"Crashes_AreCounted", crashesAreCounted},
	{"Crashes_EndWithACheckpointOrAnExit", crashesEnd},
	{"Forget_LeavesOnlyTheToken", forgetBlanks},
	{"Forget_InEveryState", forgetStates},

	{"N1_RepeatedCheckpoint", repeatedCheckpoint},
	{"N1_RepeatedRenew", repeatedRenew},
	{"N1_RepeatedRelease", repeatedRelease},
	{"N1_RepeatedReleaseOneSuccessorOn", repeatedReleaseOneOn},
	{"N1_RepeatedForget", repeatedForget},
	{"N2_NilOnlyForWhatIsThere", nilOnlyForWhatIsThere},

	{"D1_NilKeepsAndEmptyIsEmpty", nilAndEmpty},
	{"D1_SlicesAreCopied", slicesAreCopied},
	{"D1_StatesOfAllSizes", statesOfAllSizes},
	{"D2_ALateNumberNeverOverwrites", lateNumber},
	{"D2_AnotherHoldIsTold", anotherHold},
	{"D2_TwoHoldsOfOneToken", twoHolds},
	{"D2_ManySavesAtOnce", manySaves},

	{"E1_ErrorsSayWhatAndWhich", errorsSay},
	{"E1_AnEndedContextChangesNothing", endedContext},
	{"O1_EventsOfEveryOperation", events},
}
