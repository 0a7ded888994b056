// Buttons that copy the lines beside them; where the browser does not let them, the lines are selected.
(() => {
  'use strict';
  const SHOWN_FOR_MS = 1600;

  function select(code) {
    const range = document.createRange();
    range.selectNodeContents(code);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  }

  async function copy(code) {
    try {
      await navigator.clipboard.writeText(code.textContent);
      return true;
    } catch {
      select(code);
      try { return document.execCommand('copy'); } catch { return false; }
    }
  }

  for (const button of document.querySelectorAll('[data-copy]')) {
    button.hidden = false;
    button.addEventListener('click', async () => {
      const done = await copy(button.parentElement.querySelector('code'));
      button.textContent = done ? 'Copied' : 'Selected';
      setTimeout(() => { button.textContent = 'Copy'; }, SHOWN_FOR_MS);
    });
  }
})();
