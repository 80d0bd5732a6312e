// Package base declares the types of schemas, with the fields and methods that `pulumi cloud api` names.
package base

import (
	"github.com/pb33f/libopenapi/orderedmap"
	"go.yaml.in/yaml/v4"
)

// Schema describes a value.
type Schema struct {
	Type                 []string
	Description          string
	Format               string
	Pattern              string
	Nullable             *bool
	ReadOnly             *bool
	MinLength            *int64
	MaxLength            *int64
	Minimum              *float64
	Maximum              *float64
	MultipleOf           *float64
	Default              *yaml.Node
	Enum                 []*yaml.Node
	Required             []string
	AllOf                []*SchemaProxy
	AnyOf                []*SchemaProxy
	OneOf                []*SchemaProxy
	Discriminator        *Discriminator
	Items                *DynamicValue[*SchemaProxy, bool]
	Properties           *orderedmap.Map[string, *SchemaProxy]
	AdditionalProperties *DynamicValue[*SchemaProxy, bool]
	Extensions           *orderedmap.Map[string, *yaml.Node]
}

// Low identifies a schema.
type Low struct{}

// Hash returns 0, which stands for no identity.
func (*Low) Hash() uint64 {
	return 0
}

// GoLow returns nil: no schema was read from a document.
func (*Schema) GoLow() *Low {
	return nil
}

// MarshalJSONInline returns the JSON of no schema.
func (*Schema) MarshalJSONInline() ([]byte, error) {
	return []byte("null"), nil
}

// SchemaProxy refers to a schema.
type SchemaProxy struct{}

// Schema returns nil: nothing is referred to.
func (*SchemaProxy) Schema() *Schema {
	return nil
}

// Discriminator selects one of several schemas.
type Discriminator struct {
	PropertyName string
	Mapping      *orderedmap.Map[string, string]
}

// DynamicValue is one of two values.
type DynamicValue[A, B any] struct {
	N int
	A A
	B B
}

// IsA tells whether it is the first one.
func (d *DynamicValue[A, B]) IsA() bool {
	return d.N == 0
}

// Info describes a document.
type Info struct {
	Version string
}
