// Runs before the page is drawn, so that a chosen theme never flashes in.
document.documentElement.dataset.js = "";
try {
  const theme = localStorage.getItem("logs-ui-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* storage is switched off: the system's theme it is */ }
