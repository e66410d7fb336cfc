#!/bin/sh
# gofmt, go vet and golangci-lint. The linter is built from source where it is
# not there yet or is another version, which takes some minutes once.
set -eu
version=v2.15.0
module=github.com/golangci/golangci-lint/v2
files=$(git ls-files -z '*.go' | xargs -0 gofmt -l)
if [ -n "$files" ]; then
	echo "not formatted by gofmt:" >&2
	echo "$files" >&2
	exit 1
fi
go vet ./...
bin=$(go env GOPATH)/bin/golangci-lint
if ! go version -m "$bin" 2>/dev/null | grep -q "mod[[:space:]]$module[[:space:]]$version[[:space:]]"; then
	echo "building golangci-lint $version"
	go install "$module/cmd/golangci-lint@$version"
fi
"$bin" run --timeout 10m ./...
