package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress tells a person how far it is: a bar on a terminal, a line every few seconds elsewhere.
type progress struct {
	out  io.Writer
	bar  *progressbar.ProgressBar
	n    int
	told time.Time
}

const tellEvery = 2 * time.Second

func newProgress(out *os.File) *progress {
	p := &progress{out: out, told: time.Now()}
	if info, err := out.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		p.bar = progressbar.NewOptions(-1, progressbar.OptionSetWriter(out), progressbar.OptionSetDescription("order changes"),
			progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish())
	}
	return p
}

func (p *progress) add() {
	p.n++
	switch {
	case p.bar != nil:
		_ = p.bar.Add(1) // drawing is no reason to stop
	case time.Since(p.told) >= tellEvery:
		p.told = time.Now()
		fmt.Fprintf(p.out, "order changes: %d\n", p.n)
	}
}

func (p *progress) sayf(format string, args ...any) {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	fmt.Fprintf(p.out, format+"\n", args...)
}

func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
