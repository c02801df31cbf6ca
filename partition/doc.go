// Package partition decides which events keep order with each other and hands them out accordingly: a stable hash of the
// partition key, lanes that keep one key's items in order while other keys go on, and the low watermark below which all
// work is finished. It depends on the standard library alone.
package partition
