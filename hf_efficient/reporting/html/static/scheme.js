// Light or dark: as the system says, until the button says otherwise. Runs before anything is drawn.
(() => {
  'use strict';
  const root = document.documentElement;
  const button = document.getElementById('scheme');
  const system = window.matchMedia('(prefers-color-scheme: dark)');
  const KEY = 'hf_efficient.scheme';

  const kept = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  const keep = (value) => { try { localStorage.setItem(KEY, value); } catch { /* a page from a file may not */ } };

  function show() {
    const dark = root.dataset.scheme ? root.dataset.scheme === 'dark' : system.matches;
    button.textContent = dark ? 'Light' : 'Dark';
    button.setAttribute('aria-label', dark ? 'Change to light colours' : 'Change to dark colours');
  }

  const said = kept();
  if (said === 'dark' || said === 'light') root.dataset.scheme = said;
  button.addEventListener('click', () => {
    const dark = root.dataset.scheme ? root.dataset.scheme === 'dark' : system.matches;
    root.dataset.scheme = dark ? 'light' : 'dark';
    keep(root.dataset.scheme);
    show();
  });
  system.addEventListener('change', show);
  show();
})();
