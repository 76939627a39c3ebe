package deploy_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/testkit"
)

// kustomization has the fields of kustomization.yaml that we use.
type kustomization struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Namespace  string
	Labels     []struct {
		Pairs            map[string]string
		IncludeSelectors bool `yaml:"includeSelectors"`
	}
	Resources []string
	Images    []struct {
		Name    string
		NewName string `yaml:"newName"`
		NewTag  string `yaml:"newTag"`
	}
	GeneratorOptions struct {
		DisableNameSuffixHash bool `yaml:"disableNameSuffixHash"`
	} `yaml:"generatorOptions"`
	ConfigMaps []generator `yaml:"configMapGenerator"`
	Secrets    []generator `yaml:"secretGenerator"`
}

type generator struct {
	Name            string
	Files, Literals []string
}

// manifest has the fields of an object that others refer to.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct {
		Name   string
		Labels map[string]string
	}
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
			Component   string            `yaml:"app.kubernetes.io/component"`
		}
		PodSelector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		} `yaml:"podSelector"`
		Template *podTemplate
		// The fields below belong to StatefulSets and headless services.
		ServiceName          string                `yaml:"serviceName"`
		PodManagementPolicy  string                `yaml:"podManagementPolicy"`
		MinReadySeconds      int                   `yaml:"minReadySeconds"`
		VolumeClaimTemplates []claim               `yaml:"volumeClaimTemplates"`
		ClaimRetention       map[string]string     `yaml:"persistentVolumeClaimRetentionPolicy"`
		UpdateStrategy       struct{ Type string } `yaml:"updateStrategy"`
		ClusterIP            string                `yaml:"clusterIP"`
		Ports                []struct {
			TargetPort string `yaml:"targetPort"`
		}
		Ingress []struct{ Ports []struct{ Port string } }
		Rules   []struct {
			HTTP struct {
				Paths []struct {
					Backend struct {
						Service struct {
							Name string
							Port struct{ Name string }
						}
					}
				}
			}
		}
	}
}

type podTemplate struct {
	Metadata struct{ Labels map[string]string }
	Spec     struct {
		SecurityContext struct {
			RunAsNonRoot bool `yaml:"runAsNonRoot"`
			RunAsUser    int  `yaml:"runAsUser"`
			FSGroup      int  `yaml:"fsGroup"`
		} `yaml:"securityContext"`
		AutomountServiceAccountToken *bool `yaml:"automountServiceAccountToken"`
		TerminationGracePeriod       int   `yaml:"terminationGracePeriodSeconds"`
		Containers                   []podContainer
		Volumes                      []struct {
			Name      string
			ConfigMap struct{ Name string } `yaml:"configMap"`
			Secret    struct {
				SecretName string `yaml:"secretName"`
			}
		}
	}
}

type podContainer struct {
	Name, Image string
	Args        []string
	Ports       []struct{ Name string }
	Env         []struct {
		Name, Value string
		// Patch is "delete" in a patch that removes the object.
		Patch     string `yaml:"$patch"`
		ValueFrom struct {
			ConfigMapKeyRef struct{ Name, Key string } `yaml:"configMapKeyRef"`
		} `yaml:"valueFrom"`
	}
	SecurityContext struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct{ Drop []string }
	} `yaml:"securityContext"`
	ReadinessProbe probe `yaml:"readinessProbe"`
	LivenessProbe  probe `yaml:"livenessProbe"`
	VolumeMounts   []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		Patch     string `yaml:"$patch"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

// cluster has the objects of the example.
type cluster struct {
	kustomization
	objects map[string]manifest
	secrets string
}

func readCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{objects: map[string]manifest{}, secrets: allSecrets(t)}
	dir := deployed("kubernetes", "overlays", "example")
	c.kustomization = c.readDir(t, dir)
	return c
}

// readDir reads the kustomization of a folder and all objects that it refers to.
func (c *cluster) readDir(t *testing.T, dir string) kustomization {
	t.Helper()
	k := documents[kustomization](t, filepath.Join(dir, "kustomization.yaml"), true)[0]
	for _, resource := range k.Resources {
		path := filepath.Join(dir, resource)
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			c.readDir(t, path)
			continue
		}
		for _, m := range documents[manifest](t, path, false) {
			key := m.Kind + "/" + m.Metadata.Name
			if _, twice := c.objects[key]; twice || m.APIVersion == "" || m.Metadata.Name == "" {
				t.Errorf("%s: %s is duplicated, or lacks a version or name", path, key)
			}
			c.objects[key] = m
		}
	}
	return k
}

func (c *cluster) pods() map[string]*podTemplate {
	out := map[string]*podTemplate{}
	for key, m := range c.objects {
		if m.Spec.Template != nil {
			out[key] = m.Spec.Template
		}
	}
	return out
}

// runsDaemon reports whether an object runs one of the daemons.
func runsDaemon(m manifest) bool { return m.Kind == "Deployment" || m.Kind == "StatefulSet" }

// daemons returns the pods of the daemons by component.
func (c *cluster) daemons() map[string]*podTemplate {
	out := map[string]*podTemplate{}
	for _, m := range c.objects {
		if runsDaemon(m) {
			out[strings.TrimPrefix(m.Metadata.Name, "postern-")] = m.Spec.Template
		}
	}
	return out
}

func TestKubernetes_objects_referToEachOther(t *testing.T) {
	t.Parallel()
	c := readCluster(t)
	want := []string{"Deployment/postern-processor", "Ingress/postern", "Job/postern-migrate", "Namespace/postern",
		"NetworkPolicy/postern-gateway", "NetworkPolicy/postern-migrate", "NetworkPolicy/postern-processor",
		"PodDisruptionBudget/postern-gateway",
		"PodDisruptionBudget/postern-processor", "Service/postern-gateway", "Service/postern-gateway-pods",
		"StatefulSet/postern-gateway"}
	testkit.Equal(t, "objects", want, slices.Sorted(maps.Keys(c.objects)))
	if !c.GeneratorOptions.DisableNameSuffixHash {
		t.Error("a changed configuration would get another name, so running pods would not reload it")
	}
	for key, m := range c.objects {
		component := strings.TrimSuffix(strings.TrimPrefix(m.Metadata.Name, "postern-"), "-pods")
		const label = "app.kubernetes.io/component"
		selected := m.Spec.Selector.MatchLabels[label] + m.Spec.PodSelector.MatchLabels[label] +
			m.Spec.Selector.Component
		selects := slices.Contains([]string{"Deployment", "StatefulSet", "Service", "PodDisruptionBudget",
			"NetworkPolicy"}, m.Kind)
		if selects && selected != component {
			t.Errorf("%s selects component %q, want %q", key, selected, component)
		}
		if p := m.Spec.Template; p != nil && p.Metadata.Labels[label] != component {
			t.Errorf("%s: its pods have component %q", key, p.Metadata.Labels[label])
		}
		if _, ok := c.objects["Service/"+backend(m)]; backend(m) != "" && !ok {
			t.Errorf("%s refers to service %s, which does not exist", key, backend(m))
		}
		ports := portNames(c.daemons()[component])
		for _, port := range referencedPorts(m) {
			if !slices.Contains(ports, port) {
				t.Errorf("%s names port %s; its pods have %v", key, port, ports)
			}
		}
	}
}

func backend(m manifest) (service string) {
	for _, r := range m.Spec.Rules {
		for _, p := range r.HTTP.Paths {
			service = p.Backend.Service.Name
		}
	}
	return service
}

func portNames(p *podTemplate) (names []string) {
	if p != nil {
		for _, port := range p.Spec.Containers[0].Ports {
			names = append(names, port.Name)
		}
	}
	return names
}

// referencedPorts returns the named ports that an object refers to.
func referencedPorts(m manifest) (ports []string) {
	for _, p := range m.Spec.Ports {
		ports = append(ports, p.TargetPort)
	}
	for _, rule := range m.Spec.Ingress {
		for _, p := range rule.Ports {
			ports = append(ports, p.Port)
		}
	}
	if runsDaemon(m) {
		c := m.Spec.Template.Spec.Containers[0]
		ports = append(ports, c.ReadinessProbe.HTTPGet.Port, c.LivenessProbe.HTTPGet.Port)
	}
	return ports
}

// Every pod satisfies the standard "restricted", which the example's namespace enforces.
func TestKubernetes_pods_areRestricted(t *testing.T) {
	t.Parallel()
	cluster := readCluster(t)
	for key, p := range cluster.pods() {
		s, c := p.Spec, p.Spec.Containers[0]
		token := s.AutomountServiceAccountToken
		if !s.SecurityContext.RunAsNonRoot || s.SecurityContext.RunAsUser != account || token == nil || *token {
			t.Errorf("%s: %+v", key, s.SecurityContext)
		}
		if c.SecurityContext.AllowPrivilegeEscalation == nil || *c.SecurityContext.AllowPrivilegeEscalation ||
			!c.SecurityContext.ReadOnlyRootFilesystem || !cmp.Equal(c.SecurityContext.Capabilities.Drop,
			[]string{"ALL"}) || c.Image != "postern" || len(s.Containers) != 1 {
			t.Errorf("%s: %s of image %s: %+v", key, c.Name, c.Image, c.SecurityContext)
		}
		ready, alive := c.ReadinessProbe.HTTPGet.Path, c.LivenessProbe.HTTPGet.Path
		if runsDaemon(cluster.objects[key]) && (ready != "/readyz" || alive != "/healthz" ||
			s.TerminationGracePeriod < 15) {
			t.Errorf("%s: ready by %s, alive by %s, %d s to stop", key, ready, alive, s.TerminationGracePeriod)
		}
	}
}

// Each pod's configuration is valid with the objects of the example's generators.
func TestKubernetes_configurations_areValid(t *testing.T) {
	t.Parallel()
	c := readCluster(t)
	for key, p := range c.pods() {
		one := container{name: key, env: map[string]string{}, mounts: map[string]string{}}
		for _, v := range p.Spec.Containers[0].Env {
			if v.Value != "" {
				one.env[v.Name] = v.Value
			}
			ref := v.ValueFrom.ConfigMapKeyRef
			for _, g := range c.ConfigMaps {
				for _, literal := range g.Literals {
					if value, ok := strings.CutPrefix(literal, ref.Key+"="); ok && g.Name == ref.Name {
						one.env[v.Name] = value
					}
				}
			}
			if one.env[v.Name] == "" {
				t.Errorf("%s: no value for %s", key, v.Name)
			}
		}
		for _, mount := range p.Spec.Containers[0].VolumeMounts {
			for _, v := range p.Spec.Volumes {
				if v.Name == mount.Name {
					c.mount(t, &one, mount.MountPath, v.ConfigMap.Name, v.Secret.SecretName)
				}
			}
		}
		one.check(t)
	}
}

// mount mounts the files of a config map or secret below a path of the container.
func (c *cluster) mount(t *testing.T, to *container, path, configMap, secretName string) {
	t.Helper()
	before := len(to.mounts) + len(to.config)
	for _, g := range c.ConfigMaps {
		if g.Name == configMap && len(g.Files) > 0 {
			to.config = read(t, deployed("kubernetes", "overlays", "example", g.Files[0]))
		}
	}
	for _, g := range c.Secrets {
		for _, file := range g.Files {
			name, source, named := strings.Cut(file, "=")
			if !named {
				name, source = filepath.Base(file), file
			}
			if g.Name == secretName {
				to.mounts[path+"/"+name] = filepath.Join(c.secrets, strings.TrimPrefix(source, "secrets/"))
			}
		}
	}
	if len(to.mounts)+len(to.config) == before {
		t.Errorf("%s: no generator makes the files mounted at %s", to.name, path)
	}
}

// claim is the volume claim of a StatefulSet's pods.
type claim struct {
	Metadata struct{ Name string }
	Spec     struct {
		AccessModes []string `yaml:"accessModes"`
		Resources   struct{ Requests struct{ Storage string } }
	}
}

// Each gateway has its spool on a volume that outlives its pod, and that its account can write.
func TestKubernetes_spools_outlivePods(t *testing.T) {
	t.Parallel()
	c := readCluster(t)
	set := c.objects["StatefulSet/postern-gateway"].Spec
	pod := set.Template.Spec
	var spools []spoolPlace
	for _, number := range []string{"0", "1"} {
		one := spoolPlace{gateway: number}
		for _, v := range pod.Containers[0].Env {
			if v.Name == spoolVariable {
				one.dir = v.Value
			}
		}
		for _, asked := range set.VolumeClaimTemplates {
			for _, mount := range pod.Containers[0].VolumeMounts {
				if mount.Name == asked.Metadata.Name {
					// The name of a pod's claim contains the pod's name.
					one.storage, one.folder = asked.Metadata.Name+"-postern-gateway-"+number, mount.MountPath
				}
			}
			var size settings.Bytes // GiB is Gi in Kubernetes
			if err := size.UnmarshalText([]byte(asked.Spec.Resources.Requests.Storage + "B")); err != nil ||
				size <= config.Default().Ingest.Spool.MaxBytes {
				t.Errorf("claim %s of %s (%v), and the spool may take %s", asked.Metadata.Name, size, err,
					config.Default().Ingest.Spool.MaxBytes)
			}
			if modes := asked.Spec.AccessModes; !cmp.Equal(modes, []string{"ReadWriteOnce"}) {
				t.Errorf("claim %s: %v", asked.Metadata.Name, modes)
			}
		}
		spools = append(spools, one)
	}
	checkSpools(t, spools)
	if pod.SecurityContext.FSGroup != account {
		t.Errorf("the volume belongs to group %d, want %d", pod.SecurityContext.FSGroup, account)
	}
	if diff := cmp.Diff(map[string]string{"whenDeleted": "Retain", "whenScaled": "Retain"},
		set.ClaimRetention); diff != "" {
		t.Errorf("a spool could be removed with its deliveries: %s", diff)
	}
	if set.PodManagementPolicy != "Parallel" || set.UpdateStrategy.Type != "RollingUpdate" || set.MinReadySeconds == 0 {
		t.Errorf("started %s, updated by %s, ready for %d s", set.PodManagementPolicy, set.UpdateStrategy.Type,
			set.MinReadySeconds)
	}
	if names, ok := c.objects["Service/"+set.ServiceName]; !ok || names.Spec.ClusterIP != "None" {
		t.Errorf("the pods' names are of service %q, which is not headless: %+v", set.ServiceName, names.Spec.ClusterIP)
	}
}

// The component removes the setting, the mount and the claim. It refers to them by their names in
// the base.
func TestKubernetes_withoutSpool_removesVolume(t *testing.T) {
	t.Parallel()
	dir := deployed("kubernetes", "components", "without-spool")
	component := documents[struct {
		Kind    string
		Patches []struct{ Path string }
	}](t, filepath.Join(dir, "kustomization.yaml"), false)[0]
	if component.Kind != "Component" || len(component.Patches) != 1 {
		t.Fatalf("%+v", component)
	}
	path := filepath.Join(dir, component.Patches[0].Path)
	patch := documents[manifest](t, path, false)[0]
	base := readCluster(t).objects[patch.Kind+"/"+patch.Metadata.Name]
	claims := documents[map[string]any](t, path, false)[0]["spec"].(map[string]any)
	if gone, named := claims["volumeClaimTemplates"]; !named || gone != nil ||
		len(base.Spec.VolumeClaimTemplates) != 1 {
		t.Errorf("%v in place of %+v", gone, base.Spec.VolumeClaimTemplates)
	}
	removed := patch.Spec.Template.Spec.Containers[0]
	if len(removed.Env) != 1 || removed.Env[0].Name != spoolVariable || removed.Env[0].Patch != "delete" {
		t.Errorf("removed from the environment: %+v", removed.Env)
	}
	if len(removed.VolumeMounts) != 1 || removed.VolumeMounts[0].Patch != "delete" {
		t.Fatalf("removed mounts: %+v", removed.VolumeMounts)
	}
	for _, mount := range base.Spec.Template.Spec.Containers[0].VolumeMounts {
		isSpool := mount.Name == base.Spec.VolumeClaimTemplates[0].Metadata.Name
		isRemoved := mount.MountPath == removed.VolumeMounts[0].MountPath
		if isSpool != isRemoved {
			t.Errorf("%s of volume %s: removed %s", mount.MountPath, mount.Name, removed.VolumeMounts[0].MountPath)
		}
	}
}
