// Package config owns the typed configuration trees of both commands, how they are loaded and how strict that is.
//
// Order: flag, then environment (TANDEM_<KEY>, "__" between levels), then YAML file, then default. An unknown key is an
// error that names the key and the nearest known one; a value of the wrong YAML type is an error that names the key.
// Nobody else imports viper, and nobody reads configuration from the environment later.
package config
