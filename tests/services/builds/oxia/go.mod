// The Oxia server as a dependency of a module of our own: `go install` of it is refused. oxia.py builds it once,
// with one mistake of this version mended (`mend` there).
module anabranch.test/oxia

go 1.24

require github.com/oxia-db/oxia v0.14.0
