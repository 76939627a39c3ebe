package deploy_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/config"
)

// claim is what a StatefulSet asks for of each pod of its own.
type claim struct {
	Metadata struct{ Name string }
	Spec     struct {
		AccessModes []string `yaml:"accessModes"`
		Resources   struct{ Requests struct{ Storage string } }
	}
}

// Each gateway has a volume that outlives its pod, for its account to write to, and its spool in a folder of it.
func TestKubernetesKeepsSpools(t *testing.T) {
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
					// The claim of a pod has the pod's name in its own.
					one.storage, one.folder = asked.Metadata.Name+"-postern-gateway-"+number, mount.MountPath
				}
			}
			var size config.Bytes // Kubernetes writes GiB as Gi
			if err := size.UnmarshalText([]byte(asked.Spec.Resources.Requests.Storage + "B")); err != nil || size <= config.Default().Ingest.Spool.MaxBytes {
				t.Errorf("claim %s of %s (%v), and the spool may take %s", asked.Metadata.Name, size, err, config.Default().Ingest.Spool.MaxBytes)
			}
			if modes := asked.Spec.AccessModes; !cmp.Equal(modes, []string{"ReadWriteOnce"}) {
				t.Errorf("claim %s: %v", asked.Metadata.Name, modes)
			}
		}
		spools = append(spools, one)
	}
	if err := checkSpools(spools); err != nil {
		t.Error(err)
	}
	if pod.SecurityContext.FSGroup != account {
		t.Errorf("a volume would belong to group %d, want %d", pod.SecurityContext.FSGroup, account)
	}
	if diff := cmp.Diff(map[string]string{"whenDeleted": "Retain", "whenScaled": "Retain"}, set.ClaimRetention); diff != "" {
		t.Errorf("a spool could be removed with what it holds: %s", diff)
	}
	if set.PodManagementPolicy != "Parallel" || set.UpdateStrategy.Type != "RollingUpdate" || set.MinReadySeconds == 0 {
		t.Errorf("started %s, updated by %s, ready for %d s", set.PodManagementPolicy, set.UpdateStrategy.Type, set.MinReadySeconds)
	}
	if names, ok := c.objects["Service/"+set.ServiceName]; !ok || names.Spec.ClusterIP != "None" {
		t.Errorf("the pods' names are of service %q, which is not headless: %+v", set.ServiceName, names.Spec.ClusterIP)
	}
}

// The component takes away the setting, the mount and the claim, by the names that the base has.
func TestKubernetesWithoutSpool(t *testing.T) {
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
	if gone, named := claims["volumeClaimTemplates"]; !named || gone != nil || len(base.Spec.VolumeClaimTemplates) != 1 {
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
		if spool := mount.Name == base.Spec.VolumeClaimTemplates[0].Metadata.Name; spool != (mount.MountPath == removed.VolumeMounts[0].MountPath) {
			t.Errorf("%s of volume %s: removed %s", mount.MountPath, mount.Name, removed.VolumeMounts[0].MountPath)
		}
	}
}
