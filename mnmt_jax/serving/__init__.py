"""Translation server: the routes of LibreTranslate and DeepL."""
