# Bare `make` prints this help.
GO ?= go
LINT = $(GO) tool -modfile=tools.mod golangci-lint
BENCHTIME ?= 1x

# Sets the variables by which tests find the database servers, and starts those first.
SERVERS = scripts/services up && eval "$$(scripts/services env)" &&

# Where CI=true a missing promtool fails; elsewhere it is said.
PROMTOOL = $$(scripts/services promtool)

.PHONY: help services test test-brokers test-fast lint tidy-check generate generate-check guarantees guarantees-check alerts-check examples bench-once ci

help: ## print this help
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

services: ## start PostgreSQL and MariaDB for tests (installs them when run as root)
	scripts/services up

test: ## run every test with the race detector, in random order, on every database
	$(SERVERS) $(GO) test -race -shuffle=on -timeout 15m ./...
	$(GO) test -run TestIncidentsStream -timeout 5m ./examples/fulfillment

test-brokers: ## run the transports' tests on a real Kafka and on two emulators of SQS (installs them)
	scripts/services up kafka sqs && eval "$$(scripts/services env kafka sqs)" && $(GO) test -race -timeout 20m ./transport/kafka ./transport/sqs

test-fast: ## run the tests without servers, root or race detector, in under 5 minutes
	$(GO) test -short -timeout 5m ./...

lint: ## run the linters (the first time builds them, which takes minutes)
	$(LINT) run ./...

tidy-check: ## fail if go.mod is not tidy
	$(GO) mod tidy -diff

generate: ## write the generated injectors anew
	$(GO) tool wire gen ./examples/fulfillment

generate-check: ## fail if generated code is out of date
	$(GO) tool wire diff ./examples/fulfillment

guarantees: ## write the table of docs/guarantees.md anew, from the conformance suite's results
	$(GO) run ./internal/guarantees

guarantees-check: ## fail if the table of docs/guarantees.md is not what the tests say
	$(GO) run ./internal/guarantees -check

alerts-check: ## fail if promtool does not accept docs/alerts.yml
	@tool=$(PROMTOOL) || { [ "$$CI" != true ] && echo "alerts are not checked: no promtool" && exit 0; exit 1; }; \
	$$tool check rules docs/alerts.yml && $$tool test rules docs/alerts_test.yml

examples: ## run the examples
	$(GO) run ./examples/fulfillment --orders 500
	$(GO) run ./examples/fulfillment --orders 500 --chaos=false --json

bench-once: ## run every benchmark once, so that none can rot
	$(SERVERS) $(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) ./...

ci: ## do what CI does
	bash .ci/run
