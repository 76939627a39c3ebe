"""Keeps a copy of the mirror's states in the file that the argument names."""
import json, os, sys, time, urllib.error, urllib.request

file, url, token = sys.argv[1], os.environ["POSTERN_URL"], os.environ["POSTERN_TOKEN"]
own = {"cursor": "", "objects": {}}
if os.path.exists(file):
    with open(file) as f:
        own = json.load(f)


def page():
    request = urllib.request.Request(f"{url}/api/v1/changes?wait=30s&after={own['cursor']}",
                                     headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


while True:
    try:
        found = page()
    except urllib.error.HTTPError as e:
        if e.code == 410:  # the mirror was restored to an earlier state: start again
            own = {"cursor": "", "objects": {}}
        else:
            print(e, file=sys.stderr)  # such as 401: the token is wrong
            time.sleep(1)
        continue
    except (OSError, ValueError) as e:  # Postern does not respond
        print(e, file=sys.stderr)
        time.sleep(1)
        continue
    for c in found["items"]:
        key = " ".join([c["source"], c["account"], c["object_type"], c["object_id"]])
        own["objects"][key] = c["state"]  # null if it was redacted: the copy loses it too
        if c["deleted"]:
            del own["objects"][key]
    own["cursor"] = found["next_cursor"]  # stored with the states: after a kill nothing is missing
    with open(file + ".new", "w") as f:
        json.dump(own, f)
    os.replace(file + ".new", file)
