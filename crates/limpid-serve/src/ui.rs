//! The page at `/`: one document, made of the files of `ui/` and of limpid's palettes, which needs nothing from
//! anywhere else.
//!
//! Browsers run the files as they are: there is no build step and no library. [`page`] puts style, palettes and modules
//! into `index.html`. The page's content security policy allows exactly that style and that script, so a script
//! smuggled into a text would not run. The rules that keep `bundle` short (unique names, plain imports) are held by the
//! tests below.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use limpid::config::Axis;
use limpid::draw::palette::Palette;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The page, and what it is allowed to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The document, in UTF-8.
    pub html: String,
    /// What belongs into its header `Content-Security-Policy`.
    pub csp: String,
}

/// Why there is no page. It can only be the files of a folder that are at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UiError {
    /// A file that cannot be read.
    #[error(
        "cannot read `{path}`: {}; the page is made of the files of crates/limpid-serve/ui",
        limpid_base::words::system(.source)
    )]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// An import that is not of the one form there is.
    #[error("{file}: expected `import {{ names }} from \"./file.js\";`, found `{found}`")]
    Import {
        /// The importing file.
        file: String,
        /// What stands there.
        found: String,
    },
    /// Files that import each other.
    #[error("{file} imports itself, by way of {by}: move what both need to a file of its own")]
    Cycle {
        /// The file.
        file: String,
        /// The last file on the way.
        by: String,
    },
    /// A document without a place for style or script.
    #[error("index.html lacks the line `{line}`")]
    Place {
        /// What must be there.
        line: &'static str,
    },
}

macro_rules! files {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("../ui/", $name)))),*] };
}

/// The files, by name.
const FILES: &[(&str, &str)] = files!(
    "index.html" "style.css" "address.js" "answer.js" "app.js" "archive.js" "before-after.js" "chat.js" "chips.js"
    "colours.js" "command.js" "complete.js" "curve.js" "dom.js" "glass-form.js" "glass-page.js" "glass-runs.js"
    "glass-seek.js" "glass-source.js" "glass.js" "grid.js" "hands.js" "heads.js" "heat-paint.js" "heat-pointer.js"
    "heat-sight.js" "heat-tiles.js" "heat.js" "here-files.js" "here-run.js" "here-store.js" "here.css" "here.js"
    "hover.js" "live-worker.js" "live.js" "local-heat.js" "multiply-add.js" "number-map.js" "numbers.js" "reason.js"
    "runs.js" "saved.js" "says.js" "seed-table.js" "settings.js" "source.js" "start.js" "strip.js" "text.js"
    "tiles.js" "tour.js" "unit-words.js" "view-directions.js" "view-embed.js" "view-gradients.js" "view-head.js"
    "view-heads.js" "view-lens.js" "view-map.js" "view-mlp.js" "view-notation.js" "view-path.js" "view-sweep.js"
    "view-table.js" "view-text.js" "view-timelapse.js" "view-training.js" "view-walks.js" "view-why.js" "view.js"
    "views.js" "wasi.js" "words.js"
);

/// Where index.html has the palettes.
const PALETTES: &str = "<script type=\"application/json\" id=\"palettes\"></script>";
/// Where index.html has the style.
const STYLE: &str = "<link rel=\"stylesheet\" href=\"style.css\">";
/// Where index.html has the script.
const SCRIPT: &str = "<script type=\"module\" src=\"start.js\"></script>";

/// Where the files are read: one by its name.
type Reader<'a> = &'a dyn Fn(&str) -> Result<String, UiError>;

/// The page, of the files in the binary or (to work on them) of those in a folder.
///
/// # Errors
/// If a file of the folder cannot be read, or is no part of such a page.
pub fn page(dir: Option<&Path>) -> Result<Page, UiError> {
    page_from("start.js", &["style.css"], dir)
}

/// The page with a model inside of it.
///
/// # Errors
/// As [`page`]; the files in the binary have none.
pub fn live_page() -> Result<Page, UiError> {
    page_from("live.js", &["style.css", "here.css"], None)
}

/// The page whose script begins in the file `root`, with these styles.
fn page_from(root: &str, styles: &[&str], dir: Option<&Path>) -> Result<Page, UiError> {
    let read = |name: &str| read(dir, name);
    let (mut style, mut script) = ("\n".to_string(), "\n".to_string());
    for name in styles {
        style += &dense_style(&read(name)?);
    }
    bundle(root, &read, &mut vec![], &mut vec![], &mut script)?;
    let mut html = without_indents(&read("index.html")?);
    let palettes = json!(Palette::ALL.iter().map(|one| [one.name().to_string(), colours(*one)]).collect::<Vec<_>>());
    for (line, inline) in [
        (STYLE, format!("<style>{style}</style>")),
        (PALETTES, PALETTES.replace("></", &format!(">{palettes}</"))),
        (SCRIPT, format!("<script type=\"module\">{script}</script>")),
    ] {
        let (before, after) = html.split_once(line).ok_or(UiError::Place { line })?;
        html = format!("{before}{inline}{after}");
    }
    let csp = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(&script),
        hash(&style)
    );
    Ok(Page { html, csp })
}

/// The script of a live page's worker.
///
/// # Errors
/// As [`page`]; the files in the binary have none.
pub fn worker() -> Result<String, UiError> {
    let mut script = String::new();
    bundle("live-worker.js", &|name: &str| read(None, name), &mut vec![], &mut vec![], &mut script)?;
    Ok(script)
}

/// A file by its name, in the binary or in a folder.
fn read(dir: Option<&Path>, name: &str) -> Result<String, UiError> {
    let text = match dir {
        Some(dir) => {
            let path = dir.join(name);
            std::fs::read_to_string(&path).map_err(|source| UiError::Read { path, source })?
        }
        None => {
            let file = FILES.iter().find(|(file, _)| *file == name);
            let missing = || UiError::Read { path: name.into(), source: std::io::ErrorKind::NotFound.into() };
            file.ok_or_else(missing)?.1.to_string()
        }
    };
    // a browser reads \r\n as \n, and then hashes it
    Ok(text.replace("\r\n", "\n"))
}

/// The 256 colours of a palette, three bytes each, in base64.
fn colours(palette: Palette) -> String {
    BASE64_STANDARD.encode((0..=255).flat_map(|entry| palette.colour(entry)).collect::<Vec<u8>>())
}

/// A text whose lines begin at the left: a browser does not mind.
fn without_indents(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line.trim_start())).collect()
}

/// The style without indents, blank lines and comments, without spaces beside signs, and with .5 for 0.5; quoted text
/// stays.
fn dense_style(text: &str) -> String {
    let mut all = String::new();
    for line in without_indents(text).lines().filter(|line| !line.is_empty()) {
        if line.starts_with("/*") && line.find("*/").is_some_and(|end| end + 2 == line.len()) {
            continue;
        }
        let signs = [(" {", "{"), ("{ ", "{"), ("; ", ";"), (" }", "}"), (";}", "}"), (": ", ":"), (", ", ",")];
        let zeros = [(" 0.", " ."), (":0.", ":."), (",0.", ",."), ("(0.", "(.")];
        let pack = |(n, part): (usize, &str)| match n % 2 {
            0 => signs.iter().chain(&zeros).fold(part.to_string(), |part, (spaced, dense)| part.replace(spaced, dense)),
            _ => part.to_string(),
        };
        all += &line.split('"').enumerate().map(pack).collect::<Vec<_>>().join("\"");
        // a rule may follow another on its line
        if !all.ends_with(['}', ';', '{']) {
            all.push('\n');
        }
    }
    all
}

/// A line of a script without the comments of types in it, and without the spaces between a sign and what is beside it:
/// a fifth of the page. Lines with texts in single quotes or with templates inside of templates keep theirs.
fn dense(line: &str) -> String {
    let mut code = String::new();
    let mut rest = line;
    while let Some((before, (_, after))) =
        rest.split_once("/**").and_then(|(b, rest)| Some((b, rest.split_once("*/")?)))
    {
        code += before;
        rest = after.strip_prefix(' ').unwrap_or(after);
    }
    code += rest;
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let pack = |(n, part): (usize, &str)| {
        let chars: Vec<char> = part.chars().collect();
        let beside = |at: Option<usize>| at.and_then(|at| chars.get(at)).copied().unwrap_or('"');
        let keeps = |(at, c): &(usize, char)| {
            let (before, after) = (beside(at.checked_sub(1)), beside(Some(at + 1)));
            *c != ' ' || word(before) && word(after) || before == after && before != '"'
        };
        if n % 2 == 1 {
            part.to_string()
        } else {
            chars.iter().copied().enumerate().filter(keeps).map(|(_, c)| c).collect()
        }
    };
    // a template stays as it is; where another stands inside of one, or anything else is unclear, so does the line
    let plain = |n: usize, part: &str| match n % 2 {
        // a division has spaces beside it, what a pattern begins with has not
        0 => !part.replace(" / ", "").contains(['\'', '\\', '/']) && part.matches('"').count().is_multiple_of(2),
        _ => part.matches("${").count() == part.matches('}').count() && !part.ends_with('\\'),
    };
    let parts: Vec<&str> = code.split('`').collect();
    if parts.len().is_multiple_of(2) || !parts.iter().enumerate().all(|(n, part)| plain(n, part)) {
        return code;
    }
    let packed = |part: &str| part.split('"').enumerate().map(pack).collect::<Vec<_>>().join("\"");
    // of a text, what is computed in it
    let computed = |(n, part): (usize, &str)| match part.split_once('}').filter(|(value, _)| n > 0 && plain(0, value)) {
        Some((value, rest)) if !value.contains('{') => format!("{}}}{rest}", packed(value)),
        _ => part.to_string(),
    };
    let text = |part: &str| part.split("${").enumerate().map(computed).collect::<Vec<_>>().join("${");
    let each = parts.iter().enumerate().map(|(n, part)| if n % 2 == 0 { packed(part) } else { text(part) });
    each.collect::<Vec<_>>().join("`")
}

/// A text's name in a policy.
fn hash(text: &str) -> String {
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(text)))
}

/// Adds a module to one script, after those that it imports, without the words `import` and `export`, and without
/// indents, comments, most spaces and the ends of lines that are inside of something, which are a third of it. `open`
/// are the files on the way to it, `done` those that are in the script.
fn bundle(
    name: &str,
    read: Reader<'_>,
    open: &mut Vec<String>,
    done: &mut Vec<String>,
    script: &mut String,
) -> Result<(), UiError> {
    if done.iter().any(|file| file == name) {
        return Ok(());
    }
    if open.iter().any(|file| file == name) {
        return Err(UiError::Cycle { file: name.into(), by: open.last().cloned().unwrap_or_default() });
    }
    open.push(name.into());
    let text = read(name)?;
    let mut own = String::new();
    // how far in a declaration stands that the line before is all of
    let mut declares = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let bare = line.trim_start();
        // a comment may stand before what is done
        if bare.starts_with("/**") && bare.find("*/").is_none_or(|end| end + 2 == bare.len()) {
            let mut last = line;
            while !last.ends_with("*/") {
                let Some(line) = lines.next() else { break };
                last = line;
            }
        } else if line.starts_with("import ") {
            let mut statement = line.to_string();
            while !statement.ends_with(';') {
                let Some(line) = lines.next() else { break };
                statement = format!("{statement} {}", line.trim());
            }
            let from = imported(&statement).ok_or(UiError::Import { file: name.into(), found: statement.clone() })?;
            bundle(from, read, open, done, script)?;
        } else if !bare.is_empty() && !bare.starts_with("//") {
            let indent = line.len() - bare.len();
            let code = variable(&dense(before_comment(line.strip_prefix("export ").unwrap_or(bare))));
            // the last statement of a block and the last item of a list need no sign after them
            if code.starts_with('}') && own.ends_with(';') || code.starts_with(['}', ')', ']']) && own.ends_with(',') {
                own.pop();
            }
            let names = code.strip_prefix("let").filter(|names| names.starts_with([' ', '[', '{']));
            match names.filter(|_| declares == Some(indent)) {
                // declarations one after another are one
                Some(names) => own.replace_range(own.len() - 1.., &format!(",{}", names.trim_start())),
                None => own += &code,
            }
            let count = |signs: [char; 3]| code.matches(signs).count();
            let whole = code.ends_with(';') && count(['(', '[', '{']) == count([')', ']', '}']);
            declares = (indent > 0 && names.is_some() && whole).then_some(indent);
            if indent == 0 {
                own.push('\n');
            }
        }
    }
    script.push_str(&own);
    open.pop();
    done.push(name.into());
    Ok(())
}

/// A line of code with `let` where it declares with the longer `const`.
fn variable(code: &str) -> String {
    let (head, rest) = code.strip_prefix("for(").map_or(("", code), |rest| ("for(", rest));
    match rest.strip_prefix("const").filter(|names| names.starts_with([' ', '[', '{'])) {
        Some(names) => format!("{head}let{names}"),
        None => code.into(),
    }
}

/// A statement without the comment after it.
fn before_comment(line: &str) -> &str {
    match line.rsplit_once("; // ") {
        Some((code, comment)) if !comment.contains(['"', '`']) => &line[..=code.len()],
        _ => line,
    }
}

/// The file that a statement imports from.
fn imported(statement: &str) -> Option<&str> {
    let names = |names: &str| names.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, ' ' | ','));
    let (imports, from) = statement.strip_prefix("import { ")?.split_once(" } from \"./")?;
    let file = from.strip_suffix("\";").filter(|_| names(imports) && !imports.contains(" as "))?;
    let stem = file.strip_suffix(".js")?;
    stem.chars().all(|c| c.is_ascii_lowercase() || c == '-').then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// The folder of the files.
    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("ui")
    }

    /// The name that a line at the left edge declares.
    fn declared(line: &str) -> Option<&str> {
        let line = line.strip_prefix("export ").unwrap_or(line);
        let kinds = ["async function* ", "async function ", "function* ", "function ", "class ", "const ", "let "];
        let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
        rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
    }

    /// What breaks the rules under which files can be put together, and text be shown.
    fn faults(files: &BTreeMap<String, String>) -> Vec<String> {
        let mut faults = vec![];
        let mut names = BTreeMap::<&str, &str>::new();
        for (file, text) in files {
            let mut fault = |what: String| faults.push(format!("{file}: {what}"));
            // markup or programs made of text; addresses; what the policy refuses
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "createContextualFragment",
                "DOMParser",
                "document.write",
                "eval(",
                "Function(",
                "javascript:",
                "http:",
                "https:",
                "import(",
                "</script",
                "</style",
                "<!--",
                "style=",
                "srcdoc",
            ] {
                // types are named so, in comments
                let text = text.replace("import(\"./", "");
                let own = |text: String| {
                    [SCRIPT, PALETTES, crate::saved::PLACE].iter().fold(text, |text, own| text.replace(own, ""))
                };
                let text = if file == "index.html" { own(text) } else { text };
                if text.contains(word) {
                    fault(format!("`{word}`"));
                }
            }
            let handler = |word: &str| {
                word.strip_prefix("on").is_some_and(|rest| {
                    rest.split('=').next().is_some_and(|event| event.len() > 3) && rest.contains("=\"")
                })
            };
            if file == "index.html" && text.split_whitespace().any(handler) {
                fault("a handler in an attribute".into());
            }
            if !file.ends_with(".js") {
                continue;
            }
            if !text.starts_with("// ") {
                fault("does not open with what it is".into());
            }
            for line in text.lines().filter(|line| !line.is_empty()) {
                // indents are left out of the page
                if line.matches('`').count() % 2 == 1 {
                    fault(format!("`{line}`: a text of several lines"));
                }
                // nor are comments inside a line
                let quoted = line.split_once("/**").filter(|_| !line.trim_start().starts_with("/**"));
                if quoted
                    .is_some_and(|(before, _)| ['"', '`'].iter().any(|sign| before.matches(*sign).count() % 2 == 1))
                {
                    fault(format!("`{line}`: a comment inside a text"));
                }
                if let Some(name) = declared(line) {
                    if let Some(other) = names.insert(name, file) {
                        fault(format!("`{name}` is a name of {other}, too"));
                    }
                    continue;
                }
                // what goes on, ends, or explains a declaration
                let begins = [" ", "}", ")", "]", "//", "/*", "import { "];
                let starts = [("start.js", "start();"), ("live.js", "begin();"), ("live-worker.js", "listen();")]
                    .contains(&(&**file, line));
                if !begins.iter().any(|begin| line.starts_with(begin)) && !starts {
                    fault(format!("`{line}` is done when the file is loaded"));
                }
            }
        }
        let mut script = String::new();
        let mut reached = vec![];
        let read = |name: &str| {
            let missing = || UiError::Read { path: name.into(), source: std::io::ErrorKind::NotFound.into() };
            files.get(name).cloned().ok_or_else(missing)
        };
        for root in ["start.js", "live.js", "live-worker.js"] {
            if let Err(error) = bundle(root, &read, &mut vec![], &mut reached, &mut script) {
                faults.push(error.to_string());
            }
        }
        let reached: BTreeSet<&str> = reached.iter().map(String::as_str).collect();
        let lost = files.keys().filter(|file| file.ends_with(".js") && !reached.contains(file.as_str()));
        faults.extend(lost.map(|file| format!("{file}: imported by nobody")));
        faults
    }

    fn embedded() -> BTreeMap<String, String> {
        FILES.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect()
    }

    #[test]
    fn the_files_keep_the_rules() {
        assert_eq!(faults(&embedded()), Vec::<String>::new());
    }

    #[test]
    fn every_rule_finds_its_fault() {
        let planted = [
            ("dom.js", "export function joiner() {}", "`joiner` is a name of dom.js, too"),
            ("dom.js", "document.title = 1;", "is done when the file is loaded"),
            ("dom.js", "export default make;", "is done when the file is loaded"),
            ("dom.js", "  element.innerHTML = text;", "`innerHTML`"),
            ("dom.js", "const PLACE = \"https://example.org\";", "`https:`"),
            ("dom.js", "import { say } from \"./dom.js\";", "dom.js imports itself, by way of dom.js"),
            ("dom.js", "import { button } from \"./answer.js\";", "imports itself, by way of"),
            ("dom.js", "import { x } from \"./none.js\";", "cannot read `none.js`"),
            ("dom.js", "import { a as b } from \"./text.js\";", "expected `import { names } from"),
            ("dom.js", "import { x } from \"../text.js\";", "expected `import { names } from"),
            ("dom.js", "import { x } from \"lit\";", "expected `import { names } from"),
            ("dom.js", "const LINES = `one", "a text of several lines"),
            ("dom.js", "const LINE = \"one /** two */\";", "a comment inside a text"),
            ("index.html", "<p style=\"color: red\">", "`style=`"),
            ("index.html", "<p onclick=\"go()\">", "a handler in an attribute"),
            ("none.js", "// Nothing.", "none.js: imported by nobody"),
            ("none.js", "/* Nothing. */", "none.js: does not open with what it is"),
        ];
        for (file, line, expected) in planted {
            let mut files = embedded();
            let text = files.entry(file.into()).or_default();
            *text = format!("{text}{line}\n");
            let found = faults(&files);
            assert!(found.iter().any(|fault| fault.contains(expected)), "{line}: {found:?}");
        }
    }

    #[test]
    fn every_file_of_the_folder_is_in_the_binary() {
        let ours = |name: &String| {
            [".js", ".css", ".html"].iter().any(|end| name.ends_with(end)) && name != "playwright.config.js"
        };
        let names = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(names.filter(ours).collect::<BTreeSet<_>>(), embedded().into_keys().collect::<BTreeSet<_>>());
    }

    #[test]
    fn the_page_is_one_document_and_its_policy_names_what_is_in_it() {
        let size = page(None).unwrap().html.len();
        assert!(size <= 320_000, "{size}");
        const START: &[&str] = &["start.js"];
        const LIVE: &[&str] = &["live.js", "here.js", "here-files.js", "here-run.js", "here-store.js"];
        const WORKER: [&str; 3] = ["live-worker.js", "multiply-add.js", "wasi.js"];
        let pages = [(page(None), START, "\nstart();\n"), (live_page(), LIVE, "\nbegin();\n")];
        for (page, own, end) in pages {
            let apart = |name: &&str| [START, LIVE].concat().contains(name) || WORKER.contains(name);
            is_one_document(&page.unwrap(), end, &|name| own.contains(&name) || !apart(&name));
        }
    }

    /// That a page is one document, whose script ends so and has these modules, each once.
    fn is_one_document(Page { html, csp }: &Page, end: &str, has: &dyn Fn(&str) -> bool) {
        assert!(!html.contains("http:") && !html.contains("https:"));
        assert!(
            !html.contains("\nimport ") && !html.contains("\nexport ") && !html.contains("src="),
            "a part is left out"
        );
        let inside = |open: &str, close: &str| html.split_once(open).unwrap().1.split_once(close).unwrap().0;
        let (style, script) = (inside("<style>", "</style>"), inside("<script type=\"module\">", "</script>"));
        for (directive, text) in [("script-src", script), ("style-src", style)] {
            let allowed = csp.split("; ").find_map(|part| part.strip_prefix(directive)).unwrap();
            assert_eq!(allowed, format!(" '{}'", hash(text)), "{directive}");
        }
        assert!(script.ends_with(end));
        assert!(!script.lines().any(|line| ["//", "* @", " "].iter().any(|begin| line.starts_with(begin))));
        for (name, text) in embedded().iter().filter(|(name, _)| name.ends_with(".js") && has(name)) {
            let first = text.lines().find(|line| declared(line).is_some()).unwrap();
            let first = variable(&dense(first.strip_prefix("export ").unwrap_or(first)));
            assert_eq!(script.lines().filter(|line| *line == first).count(), 1, "{name} is not in the script once");
        }
    }

    /// Lines inside of something are joined, which changes nothing where they end or go on with a sign.
    #[test]
    fn lines_are_joined_at_signs_only() {
        let signs = |text: &str, all: &str, at: fn(&str) -> Option<char>| at(text).is_some_and(|c| all.contains(c));
        for (file, text) in embedded().iter().filter(|(name, _)| name.ends_with(".js")) {
            let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with(['*', '/'])).collect();
            for pair in code.windows(2).filter(|pair| pair[0].starts_with(' ') && !pair[1].is_empty()) {
                let (line, next) = (before_comment(pair[0]), pair[1].trim_start());
                let ends = signs(line, ";{},([>:?=&|+", |line| line.chars().last());
                assert!(ends || signs(next, ".)]}?:&|+", |line| line.chars().next()), "{file}: {line}");
            }
        }
        let read = |name: &str| {
            assert_eq!(name, "a.js");
            Ok("// A module.\nexport function f(a) {\n  // a comment\n  const b = a; // and one\n  const [e] = b;\n  \
                for (const c of b) {\n    g(c, \n      \"; // text\");\n  }\n}\nconst d = 1;\n"
                .to_string())
        };
        let mut script = String::new();
        bundle("a.js", &read, &mut vec![], &mut vec![], &mut script).unwrap();
        assert_eq!(script, "function f(a){\nlet b=a,[e]=b;for(let c of b){g(c,\"; // text\")}}\nlet d=1;\n");
    }

    #[test]
    fn spaces_and_types_are_left_out_and_texts_stay() {
        for (line, expected) in [
            ("const a = (b, c) => b - -c + +c;", "const a=(b,c)=>b- -c+ +c;"),
            ("return of(x) ? \"a  b\" : \" , \";", "return of(x)?\"a  b\":\" , \";"),
            ("const x = a / (b + c) / 2;", "const x=a/(b+c)/2;"),
            ("const x = /a / b/.exec(c);", "const x = /a / b/.exec(c);"),
            ("const x = /** @type {any} */ (y) in z;", "const x=(y)in z;"),
            ("f(/** @type {A} */ a, /** @type {B} */ b);", "f(a,b);"),
            ("const t = `${a} = ${b}`;", "const t=`${a} = ${b}`;"),
            ("const t = `a + ${b + 1} + ${c ? \"d + e\" : f} + g`;", "const t=`a + ${b+1} + ${c?\"d + e\":f} + g`;"),
            ("f(a, `it's \" / `, b, \"c, d\");", "f(a,`it's \" / `,b,\"c, d\");"),
            ("f(a, `${b ? ` c, ${d}` : \"\"}`, e);", "f(a, `${b ? ` c, ${d}` : \"\"}`, e);"),
            ("f(a, \"`b, c\", d);", "f(a, \"`b, c\", d);"),
            ("const r = 'a, b';", "const r = 'a, b';"),
        ] {
            assert_eq!(dense(line), expected);
        }
        let style = "/* all */\n\na :hover > b {\n  width: calc(1px + 0.2px); }\n[a=\"b, 0.5c\"] { color: red; }\n";
        assert_eq!(dense_style(style), "a :hover > b{width:calc(1px + .2px)}[a=\"b, 0.5c\"]{color:red}");
    }

    #[test]
    fn the_page_has_the_palettes_of_the_library() {
        let html = page(None).unwrap().html;
        let (_, rest) = html.split_once("id=\"palettes\">").unwrap();
        let written: Vec<(String, String)> = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
        for (palette, (name, colours)) in Palette::ALL.iter().zip(written) {
            let own: Vec<u8> = (0..=255).flat_map(|entry| palette.colour(entry)).collect();
            assert_eq!((name.as_str(), BASE64_STANDARD.decode(colours).unwrap()), (palette.name(), own));
        }
    }

    /// The example of the policy's specification.
    #[test]
    fn a_hash_is_what_browsers_compute() {
        assert_eq!(hash("alert('Hello, world.');"), "sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng=");
    }

    #[test]
    fn a_folder_of_the_same_files_gives_the_same_page() {
        assert_eq!(page(Some(&folder())).unwrap(), page(None).unwrap());
        let missing = page(Some(Path::new("no/such/folder"))).unwrap_err().to_string();
        assert!(missing.contains("style.css"), "{missing}");
    }
}
