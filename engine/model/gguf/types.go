package gguf

import (
	"fmt"

	"tandem/engine/tensor"
)

// elementTypes maps the file's numbers of the types the project reads.
var elementTypes = map[uint32]tensor.DType{
	0: tensor.F32, 1: tensor.F16, 2: tensor.Q4_0, 3: tensor.Q4_1, 6: tensor.Q5_0, 7: tensor.Q5_1,
	8: tensor.Q8_0, 12: tensor.Q4_K, 13: tensor.Q5_K, 14: tensor.Q6_K, 30: tensor.BF16,
}

// otherTypes names types that exist but are not read, for the error only.
var otherTypes = map[uint32]string{
	9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
	19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32",
	27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}

func elementType(kind uint32) (tensor.DType, error) {
	if t, ok := elementTypes[kind]; ok {
		return t, nil
	}
	name, ok := otherTypes[kind]
	if !ok {
		name = fmt.Sprintf("number %d", kind)
	}
	return tensor.Invalid, fmt.Errorf("element type %s is not supported (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K are)", name)
}
