package main

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// The picture never exceeds the terminal, or its lines would wrap and the next picture would be
// drawn in the wrong place.
func TestPictureFits(t *testing.T) {
	t.Parallel()
	v := view{
		elapsed: 12 * time.Second, lines: 15, total: 30, kills: 2,
		crew: []handView{{"w1", running, 3}, {"w2", frozen, 0}, {"w10", killed, 0}},
		news: []entry{{time.Second, strings.Repeat("long ", 60)}, {time.Second, "SIGKILL for w1"}},
	}
	for i := range 20 {
		v.works = append(v.works, workView{
			id: printable("tree/" + strings.Repeat("ü漢\x1b", i)), lines: 30 - i, position: 10, token: 1 << 40, owner: i%4 - 1,
			done: i%5 == 0, left: []parting{{"w1", "handed over"}, {"w2", "killed"}, {"w1", "frozen"}}[:i%4],
		})
	}
	for _, height := range []int{1, 5, 12, 24, 80} {
		for _, width := range []int{1, 20, 79, 132, 300} {
			picture := v.draw(width, height)
			if len(picture) > height {
				t.Errorf("%d×%d: %d lines", width, height, len(picture))
			}
			for _, line := range picture {
				if got := line.fit(width, false); utf8.RuneCountInString(got) > width || strings.ContainsRune(got, '\x1b') {
					t.Errorf("%d×%d: %q", width, height, got)
				}
			}
		}
	}
	all := ""
	for _, line := range v.draw(132, 80) {
		all += line.fit(132, true) + "\n"
	}
	for _, want := range []string{"15 of 30 lines", "FROZEN", "KILLED", "w1 handed over", "\x1b[31mSIGKILL for w1\x1b[0m"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is missing in:\n%s", want, all)
		}
	}
}
