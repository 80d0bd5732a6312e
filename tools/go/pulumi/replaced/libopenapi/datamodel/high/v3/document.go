// Package v3 declares the types of documents of OpenAPI 3, with the fields that `pulumi cloud api` names.
package v3

import (
	"github.com/pb33f/libopenapi/datamodel/high/base"
	"github.com/pb33f/libopenapi/orderedmap"
	"go.yaml.in/yaml/v4"
)

// Document is a whole document.
type Document struct {
	Info       *base.Info
	Paths      *Paths
	Components *Components
}

// Components are what other parts refer to.
type Components struct {
	Schemas *orderedmap.Map[string, *base.SchemaProxy]
}

// Paths are the paths of an API.
type Paths struct {
	PathItems *orderedmap.Map[string, *PathItem]
}

// PathItem holds the operations of a path.
type PathItem struct {
	Get, Post, Put, Delete, Patch, Head *Operation
}

// Operation is one request of an API.
type Operation struct {
	OperationId string
	Summary     string
	Description string
	Tags        []string
	Deprecated  *bool
	Parameters  []*Parameter
	RequestBody *RequestBody
	Responses   *Responses
	Extensions  *orderedmap.Map[string, *yaml.Node]
}

// Parameter is a parameter of an operation.
type Parameter struct {
	Name        string
	In          string
	Description string
	Required    *bool
	Schema      *base.SchemaProxy
}

// RequestBody is the body of a request.
type RequestBody struct {
	Content *orderedmap.Map[string, *MediaType]
}

// Responses are the responses of an operation.
type Responses struct {
	Codes   *orderedmap.Map[string, *Response]
	Default *Response
}

// Response is one response.
type Response struct {
	Description string
	Content     *orderedmap.Map[string, *MediaType]
}

// MediaType is the form of a body.
type MediaType struct {
	Schema *base.SchemaProxy
}
