// Package stub is a server that speaks the OpenAI API, has no model, and answers
// at times that are known beforehand: what a load client is checked against.
package stub
