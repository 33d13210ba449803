//! Text in a page.

/// Text as HTML shows it.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            // what would turn the text around it, or is no character of a page
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                out.extend(c.escape_default())
            }
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}
