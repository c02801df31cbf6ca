package sqs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/seambus/seambus/transport"
)

// errReceipt holds where the broker refuses a receipt handle: the lease is over, or the message is gone.
var errReceipt = errors.New("receipt refused")

// What the services call a request whose content is to blame. Everything else, throttling, faults of theirs, missing rights,
// expired credentials and missing queues included, may be right the next time.
var (
	tooLargeCodes = []string{"BatchRequestTooLong", "MessageTooLong"}
	refusedCodes  = []string{
		"InvalidMessageContents", "InvalidParameterValue", "InvalidParameter", "InvalidAttributeValue", "InvalidAttributeName",
		"MissingParameter", "UnsupportedOperation", "ValidationError",
	}
	receiptCodes = []string{"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue", "InvalidParameter"}
)

// lastPart removes the prefix of a code such as AWS.SimpleQueueService.BatchRequestTooLong.
func lastPart(code string) string { return code[strings.LastIndexAny(code, ".#")+1:] }

// classified says of an error whether repeating can help, and keeps it.
func classified(code string, err error) error {
	switch code = lastPart(code); {
	case slices.Contains(tooLargeCodes, code):
		return fmt.Errorf("%w: %w", transport.ErrTooLarge, err)
	case slices.Contains(refusedCodes, code):
		return fmt.Errorf("%w: %w", transport.ErrRefused, err)
	}
	return fmt.Errorf("%w: %w", transport.ErrUnavailable, err)
}

// ofCall classifies the error of a whole call. A nil err gives nil.
func ofCall(err error) error {
	if err == nil {
		return nil
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return classified(api.ErrorCode(), err)
	}
	return fmt.Errorf("%w: %w", transport.ErrUnavailable, err)
}

// ofEntry classifies the failure of one entry of a batch.
func ofEntry(code, text *string) error {
	return classified(deref(code), fmt.Errorf("%s: %s", deref(code), deref(text)))
}

// ofReceipt classifies the failure of a delete or a change of visibility.
func ofReceipt(e sqstypes.BatchResultErrorEntry) error {
	err := fmt.Errorf("%s: %s", deref(e.Code), deref(e.Message))
	if slices.Contains(receiptCodes, lastPart(deref(e.Code))) {
		return fmt.Errorf("%w: %w", errReceipt, err)
	}
	return fmt.Errorf("%w: %w", transport.ErrUnavailable, err)
}

// ofReceipts classifies the error of a whole call for receipts.
func ofReceipts(err error) error {
	if err = ofCall(err); errors.Is(err, transport.ErrRefused) {
		return fmt.Errorf("%w: %w", errReceipt, err)
	}
	return err
}

func notFound(err error) bool {
	if _, ok := errors.AsType[*sqstypes.QueueDoesNotExist](err); ok {
		return true
	}
	api, ok := errors.AsType[smithy.APIError](err)
	return ok && (strings.Contains(api.ErrorCode(), "NonExistentQueue") || lastPart(api.ErrorCode()) == "QueueDoesNotExist")
}

// ended prefers the error of a context that has ended to what a call made of it.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
