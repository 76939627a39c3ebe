package config

// SecretFile is a file with a secret, and the setting that names it.
type SecretFile struct{ Setting, Path string }

// SecretFiles returns all secret files of the configuration.
func (c *Config) SecretFiles() (all []SecretFile) {
	add := func(setting, path string) {
		if path != "" {
			all = append(all, SecretFile{setting, path})
		}
	}
	add("nats.credentials", c.NATS.Credentials)
	add("nats.tls.key", c.NATS.TLS.Key)
	add("ingest.tls.key", c.Ingest.TLS.Key)
	for _, name := range sortedKeys(c.Sources) {
		s := c.Sources[name]
		for i := range s.Secrets {
			add("sources."+name+".secrets."+s.Secrets[i].Name, s.Secrets[i].File)
		}
		if challenge := s.Handshake.Challenge; challenge != nil && challenge.Token != nil {
			add("sources."+name+".handshake.challenge.token", challenge.Token.File)
		}
		add("sources."+name+".api.key", s.API.Key.File)
	}
	for _, name := range sortedKeys(c.Destinations) {
		add("destinations."+name+".key", c.Destinations[name].Key.File)
		add("destinations."+name+".signing_secret", c.Destinations[name].SigningSecret.File)
		add("destinations."+name+".smtp.password", c.Destinations[name].SMTP.Password.File)
	}
	for _, name := range sortedKeys(c.Forward) {
		add("forward."+name+".secret", c.Forward[name].Secret.File)
	}
	return all
}

// FlattenProblems returns the single errors of an error of Load.
func FlattenProblems(err error) (all []error) {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // needs all parts
		for _, one := range joined.Unwrap() {
			all = append(all, FlattenProblems(one)...)
		}
		return all
	}
	return []error{err}
}
