// Package orderedmap declares the maps in the types of documents. No map is ever filled.
package orderedmap

import "iter"

// Map is an empty map. A nil map is one, too.
type Map[K comparable, V any] struct{}

// New returns an empty map.
func New[K comparable, V any]() *Map[K, V] {
	return &Map[K, V]{}
}

// Len returns 0.
func Len[K comparable, V any](*Map[K, V]) int {
	return 0
}

// Get finds nothing.
func (*Map[K, V]) Get(K) (value V, found bool) {
	return value, false
}

// GetOrZero returns the zero value.
func (*Map[K, V]) GetOrZero(K) (value V) {
	return value
}

// Set keeps nothing.
func (*Map[K, V]) Set(K, V) (old V, found bool) {
	return old, false
}

// Delete deletes nothing.
func (*Map[K, V]) Delete(K) (old V, found bool) {
	return old, false
}

// FromOldest yields nothing.
func (*Map[K, V]) FromOldest() iter.Seq2[K, V] {
	return func(func(K, V) bool) {}
}

// KeysFromOldest yields nothing.
func (*Map[K, V]) KeysFromOldest() iter.Seq[K] {
	return func(func(K) bool) {}
}
