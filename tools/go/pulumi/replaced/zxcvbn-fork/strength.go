// Package zxcvbn is the same estimate under the path of the fork, which `pulumi env set` imports.
package zxcvbn

import original "github.com/nbutton23/zxcvbn-go"

// PasswordStrength returns the entropy of a text.
var PasswordStrength = original.PasswordStrength
