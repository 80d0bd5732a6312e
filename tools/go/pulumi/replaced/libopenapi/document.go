// Package libopenapi stands in for the parser of OpenAPI documents that only `pulumi cloud api` calls.
//
// The parser is a third of what the compiler writes for the Pulumi CLI, and Herdsman never runs that command. These
// packages declare the types that the command names, so that it compiles; the command itself ends with an error.
package libopenapi

import (
	"errors"

	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
)

// ErrLeftOut is the error of every document.
var ErrLeftOut = errors.New(
	"Herdsman builds the Pulumi CLI without the parser of OpenAPI documents; " +
		"install the CLI from https://www.pulumi.com/docs/install for this command")

// Document is a parsed document. There is none.
type Document struct{}

// DocumentModel holds the model of a document.
type DocumentModel[T any] struct {
	Model T
}

// NewDocument returns ErrLeftOut.
func NewDocument([]byte) (*Document, error) {
	return nil, ErrLeftOut
}

// BuildV3Model returns ErrLeftOut.
func (*Document) BuildV3Model() (*DocumentModel[v3.Document], error) {
	return nil, ErrLeftOut
}
