#!/bin/sh
# Draws each *.dot of this folder as SVG with Graphviz, and puts style.css into it. Readers need
# neither: the SVG is committed, with a digest of what it was drawn from, which a test compares.
set -eu
cd "$(dirname "$0")"
font='DejaVu Sans'
for source in *.dot; do
	name=${source%.dot}
	digest=$(cat "$source" style.css | sha256sum | cut -d ' ' -f 1)
	title=$(sed -n '1s,^// ,,p' "$source")
	dot -Tsvg -Gfontname="$font" -Nfontname="$font" -Efontname="$font" "$source" |
		# Without width and height in points, tooltips, ids, and the comments that name the release.
		awk -v digest="$digest" -v title="$title" '
			/^<\?xml|^<!DOCTYPE|^ "http|^<!--|^ -->|^<title>.*<\/title>$/ { next }
			/^<svg / { gsub(/pt"/, "\""); print "<!-- Drawn by make pictures. Digest of its text: " digest " -->" }
			{ print }
			/^ viewBox=/ && !styled {
				styled = 1
				print "<title>" title "</title>\n<style>"
				while ((getline line < "style.css") > 0) print line
				print "</style>"
			}' > "$name.svg"
done
