#!/bin/sh
# gofmt, go vet and golangci-lint. The linter is built from source, at one
# version, where it is not there yet.
set -eu
version=v2.12.2
files=$(git ls-files '*.go' | xargs gofmt -l)
if [ -n "$files" ]; then
	echo "not formatted by gofmt:" >&2
	echo "$files" >&2
	exit 1
fi
go vet ./...
bin=$(go env GOPATH)/bin/golangci-lint
if [ ! -x "$bin" ]; then
	echo "building golangci-lint $version"
	go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version"
fi
"$bin" run ./...
