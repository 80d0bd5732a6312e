// Package zxcvbn estimates how hard a text is to guess, for the question of `pulumi config set` whether a plain value
// is a secret.
//
// The package that it stands in for reads lists of words and names at each start of the CLI, also for commands that
// never ask. This one has no lists: its result is the upper bound that the other package begins with. So the CLI asks
// about each value that it asked about before, and about some more.
package zxcvbn

import "math"

// Strength is the result for one text.
type Strength struct {
	// Entropy is in bits.
	Entropy float64
}

// PasswordStrength returns the entropy of a text whose characters are chosen at random from the classes that occur in
// it. The second argument, words that the text may contain, has no effect.
func PasswordStrength(text string, _ []string) Strength {
	var lower, upper, digits, others float64
	for _, c := range []byte(text) {
		switch {
		case 'a' <= c && c <= 'z':
			lower = 26
		case 'A' <= c && c <= 'Z':
			upper = 26
		case '0' <= c && c <= '9':
			digits = 10
		default:
			others = 33
		}
	}
	if text == "" {
		return Strength{}
	}
	return Strength{Entropy: float64(len(text)) * math.Log2(lower+upper+digits+others)}
}
