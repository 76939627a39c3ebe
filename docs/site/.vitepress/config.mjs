// The documents as a static site, from the same Markdown that the repository shows: make docs. The
// site needs no network: the search index, the styles and the pictures are part of it.
import fs from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'

const root = fileURLToPath(new URL('../bin/pages/', import.meta.url)) // copies: make docs
const repository = 'https://github.com/postern-gateway/postern/blob/main/'

// title returns the first heading of a page.
function title(page) {
  const heading = /^# (.+)$/m.exec(fs.readFileSync(path.join(root, page), 'utf8'))
  return heading[1].replaceAll('`', '')
}

// anchor returns the anchor that GitHub gives to a heading, so that the links of the pages work here too.
function anchor(heading) {
  return heading.trim().toLowerCase().replace(/[^\p{L}\p{N}_ -]/gu, '').replaceAll(' ', '-')
}

// pages returns the links of a folder's pages. README.md of a folder comes first.
function pages(folder) {
  return fs.readdirSync(path.join(root, folder)).filter((name) => name.endsWith('.md'))
    .sort((a, b) => (b === 'README.md') - (a === 'README.md') || a.localeCompare(b))
    .map((name) => {
      const page = path.posix.join(folder, name)
      return { text: title(page), link: '/' + page.replace(/README\.md$/, '').replace(/\.md$/, '') }
    })
}

export default defineConfig({
  title: 'Postern',
  description: 'Webhooks stored once, applied in the right order',
  vite: { build: { chunkSizeWarningLimit: 5000 } }, // the search index
  srcDir: './bin/pages',
  outDir: './bin/html',
  cacheDir: './bin/cache',
  rewrites: { 'README.md': 'index.md', ':folder(.*)/README.md': ':folder/index.md' },
  markdown: {
    attrs: { disable: true }, // {id} in a heading is text
    anchor: { slugify: anchor },
    config(markdown) {
      // Pages are plain Markdown: {{...}} in them is text, not an expression of Vue.
      for (const name of ['text', 'code_inline']) {
        const rule = markdown.renderer.rules[name]
        markdown.renderer.rules[name] = (...all) => rule(...all).replaceAll('{{', '&#123;&#123;')
      }
      // A placeholder such as <ID> is text.
      const inline = markdown.renderer.rules.html_inline
      markdown.renderer.rules.html_inline = (tokens, i, ...rest) =>
        /^<(br|sub|sup|!--)/.test(tokens[i].content) ? inline(tokens, i, ...rest) : markdown.utils.escapeHtml(tokens[i].content)
      const open = markdown.renderer.rules.link_open ?? ((tokens, i, options, env, self) => self.renderToken(tokens, i, options))
      markdown.renderer.rules.link_open = (tokens, i, options, env, self) => {
        const href = tokens[i].attrGet('href')
        if (!/^([a-z]+:|#)/.test(href)) {
          const [file, anchor] = href.split('#')
          const from = path.dirname(env.relativePath === 'index.md' ? 'README.md' : env.relativePath)
          const target = path.posix.join(from, file)
          const hash = anchor ? '#' + anchor : ''
          if (!/\.(md|svg)$/.test(file) || !fs.existsSync(path.join(root, target))) { // code and folders
            tokens[i].attrSet('href', repository + target.replace(/\/$/, '') + hash)
          } else if (path.basename(file) === 'README.md') { // see rewrites
            tokens[i].attrSet('href', file.replace(/README\.md$/, 'index.md') + hash)
          }
        }
        return open(tokens, i, options, env, self)
      }
    },
  },
  themeConfig: {
    search: { provider: 'local' },
    outline: [2, 3],
    nav: [{ text: 'Map', link: '/docs/' }, { text: 'Security', link: '/SECURITY' }, { text: 'Changes', link: '/CHANGELOG' }],
    sidebar: [
      { text: 'Tutorial', items: pages('docs/tutorial') },
      { text: 'How to', collapsed: false, items: pages('docs/how-to') },
      { text: 'Reference', collapsed: true, items: pages('docs/reference') },
      { text: 'Explanation', collapsed: true, items: pages('docs/explanation') },
      { text: 'Benchmarks', link: '/docs/benchmarks' },
      { text: 'Decisions', collapsed: true, items: pages('docs/decisions') },
      { text: 'Deployment files', link: '/deploy/' },
      { text: 'Examples', link: '/examples/' },
    ],
  },
})
