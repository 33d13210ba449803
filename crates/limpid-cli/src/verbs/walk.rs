//! `walk`: a document on the transformer, section by section, on a live model of its kind.

use crate::options::{self, Usage};
use crate::show::{self, Progress};
use anyhow::Result;
use limpid::config::parse_axis;
use limpid::draw::table::{TableOptions, columns};
use limpid::draw::view::{Paint, View, wrap};
use limpid::names::Notation;
use limpid_study::walk::{As, Figure, Live, Made, ShapeRow, Shown, Walk, WalkError, WalkOptions, WalkStep};
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

/// Read a document about the transformer beside a live model.
///
/// Each section has its symbols, formula, shapes and tensors, what to see, where the document errs, and commands to
/// try. Without a name: the documents, a line each. On a terminal it goes step by step, elsewhere it prints all of
/// them.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// s0 (Notations), s1 (Zero-to-Hero), s2 (The Formulated GPT-2), s3 (decoder-readme), s4 (llm.c's memory)
    #[arg(value_name = "WALK")]
    name: Option<String>,
    /// One step: its name, its number, or words of its section: masking, 13, 4.1, "feed-forward" (a section's whole
    /// number with its dot: 5.)
    #[arg(value_name = "STEP", requires = "name")]
    step: Option<String>,
    /// List the steps; without a name, those of all documents
    #[arg(long, conflicts_with = "step")]
    list: bool,
    /// Print all steps at once, even on a terminal
    #[arg(long, requires = "name", conflicts_with_all = ["step", "list"])]
    all: bool,
    /// Walk on this model instead of the walk's own: a folder of limpid or HuggingFace, a .gguf, a .bin of llm.c
    #[arg(long, value_name = "DIR", requires = "name")]
    model: Option<PathBuf>,
    /// Show the model on this text instead of the walk's own (repeatable)
    #[arg(long, value_name = "TEXT", requires = "name", action = clap::ArgAction::Append)]
    prompt: Vec<String>,
    /// Use the initial weights, before training
    #[arg(long, requires = "name")]
    initial: bool,
    /// Name tensors and axes as another document does: s0, s1, s2, s3, llmc, transformerlens, limpid [default: the
    /// walk's own]
    #[arg(long, value_name = "NAME", requires = "name", value_parser = parse_axis::<Notation>)]
    notation: Option<Notation>,
    /// Maximum line width in characters [default: the terminal's; in a file or a pipe 100, with unlimited tables]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(20..))]
    width: Option<u16>,
    /// Threads [default: one per core]; results do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<u16>,
    /// Print the steps as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<()> {
    let page = Page::new(&args);
    let Some(name) = &args.name else {
        return documents(&page, &args);
    };
    let usage = |error: WalkError| Usage(error.to_string());
    let walk = Walk::named(name).map_err(usage)?;
    let one = args.step.as_ref().map(|step| walk.find(step)).transpose().map_err(usage)?;
    if args.list {
        return if args.json { show::json(&listed(&walk)) } else { show::out(&page.contents(&walk)) };
    }
    let commands: Vec<String> = walk.models.iter().map(Made::command).collect();
    let mut live = walk.live(WalkOptions {
        model: args.model.clone(),
        prompts: args.prompt,
        initial: args.initial,
        pictures: false,
        notation: args.notation,
        threads: options::threads(args.threads),
    });
    if !args.json {
        live = live.telling(training(args.model.is_some()));
    }
    if let Some(n) = one {
        let mut step = shown(&mut live, n)?;
        if n > 0 {
            // the first step says it, which is not shown
            step.notes.splice(0..0, live.other_texts()?);
        }
        if args.json {
            return show::json(&step);
        }
        show::painted(&page.text(live.walk(), &step))?;
        return show::out(page.note().trim_start_matches('\n'));
    }
    if args.json {
        let steps = (0..live.walk().steps.len()).map(|n| shown(&mut live, n)).collect::<Result<Vec<_>, _>>()?;
        let walk = live.walk().name.clone();
        let differences = live.differences()?;
        return show::json(&json!({ "walk": walk, "commands": commands, "differences": differences, "steps": steps }));
    }
    if !args.all && show::terminal() && std::io::stdin().is_terminal() {
        return page.turn(&mut live);
    }
    page.begin(&mut live)?;
    (0..live.walk().steps.len()).try_for_each(|n| page.print(&mut live, n))
}

/// Says that a model is being trained: as a bar where there is a terminal, elsewhere in one line. Beside the user's
/// model it is for what the document has on one of its own.
fn training(other: bool) -> impl FnMut(&Made, u64, u64) {
    let mut bar: Option<Progress> = None;
    move |made, step, of| {
        let bar_of = bar.get_or_insert_with(|| Progress::new(of, false));
        let why = if other { " for the document's own numbers" } else { "" };
        let what = || format!("training {}{why}", made.folder());
        if !bar_of.lines() {
            bar_of.step(step, what);
        } else if step == 1 {
            show::say(format_args!("{}: {}", what(), show::plural(of, "step")));
        }
        if step == of {
            bar_of.done();
            bar = None;
        }
    }
}

/// The steps of a walk.
fn listed(walk: &Walk) -> Value {
    let step = |step: &WalkStep| json!({ "id": step.id, "section": step.section, "title": step.title });
    walk.steps.iter().map(step).collect()
}

/// The documents, with their steps if these are to be listed.
fn documents(page: &Page, args: &Args) -> Result<()> {
    let walks = Walk::all();
    if args.json {
        let one = |walk: &Walk| {
            let models: Vec<String> = walk.models.iter().map(Made::command).collect();
            let mut all = json!({
                "name": walk.name, "also": walk.also, "title": walk.title, "about": walk.about,
                "steps": walk.steps.len(), "models": models,
            });
            if args.list {
                all["list"] = listed(walk);
            }
            all
        };
        return show::json(&walks.iter().map(one).collect::<Vec<_>>());
    }
    let mut text = String::new();
    for walk in &walks {
        let steps = show::plural(walk.steps.len(), "step");
        text += &page.bold(&format!("{}  {}, {steps}", walk.name, walk.title));
        text += &page.indented(&wrap(&walk.about, 0, page.prose - INDENT));
        if args.list {
            text += &format!("\n{}\n", page.contents(walk));
        }
    }
    show::painted(&text)
}

/// The `n`-th step, live.
fn shown(live: &mut Live, n: usize) -> Result<Shown, WalkError> {
    let step = live.walk().steps[n].clone();
    live.step(&step)
}

/// Spaces before what is shown.
const INDENT: usize = 3;
const OTHER: &str =
    "The text here is about the walk's own model and texts: numbers and words in sentences are not yours.";
const KEYS: &str = "Enter or n: the next step; b: the one before; a number, a name or words of a section: that step; \
                    l: the list; q: quit.";
const MEMORY: &str = "The walk trains the same model in memory, in a second or two. The commands under Try use the \
                      folder that this command makes; --model FOLDER walks on it without training.";
const LABELS: &str = "See: what to look at. Errs: where the document errs. Elsewhere: what another document does. \
                      Printed: the document's own numbers, compared with the live ones. Checked: numbers that it does \
                      not print, worked out by hand. holds: a property, tested now. Refused: a command that should \
                      fail. Codes in brackets are those of docs/contract.md.";

/// Room for the words before a paragraph: `Elsewhere `.
const LABEL: usize = 10;

/// How steps are printed.
struct Page {
    /// Characters of a line of text.
    prose: usize,
    /// Characters of a line of a table; 0 for any number.
    width: usize,
    paint: Paint,
    /// Whether the walk is on a model of the user's.
    theirs: bool,
    /// Whether the walk is on a model or texts that are not its own.
    other: bool,
}

impl Page {
    fn new(args: &Args) -> Page {
        let width = args.width.map_or_else(show::table_width, usize::from);
        let prose = if width == 0 { show::PROSE } else { width.clamp(20, show::PROSE) };
        let other = args.model.is_some() || !args.prompt.is_empty();
        Page { prose, width, paint: show::paint(), theirs: args.model.is_some(), other }
    }

    fn bold(&self, line: &str) -> String {
        let text = wrap(&show::spelled(line), INDENT, self.prose);
        let bold = |line: &str| match self.paint {
            Paint::Shades => format!("{line}\n"),
            _ => console::style(line).bold().to_string() + "\n",
        };
        text.lines().map(bold).collect()
    }

    /// `text` with spaces before each of its lines.
    fn indented(&self, text: &str) -> String {
        let line = |line: &str| if line.is_empty() { "\n".into() } else { format!("{}{line}\n", " ".repeat(INDENT)) };
        text.lines().map(line).collect()
    }

    /// A paragraph with a word at its left, or above it where lines are short.
    fn paragraph(&self, label: &str, text: &str) -> String {
        let text = show::spelled(text);
        if self.prose < 60 {
            return self.bold(label) + &self.indented(&wrap(&text, 0, self.prose - INDENT));
        }
        let text = wrap(&text, 0, self.prose - LABEL);
        let lines = text.lines().enumerate();
        let margin = |n: usize| match (n, self.paint) {
            (0, Paint::Shades) => format!("{label:<LABEL$}"),
            (0, _) => console::style(format!("{label:<LABEL$}")).bold().to_string(),
            _ => " ".repeat(LABEL),
        };
        lines.map(|(n, line)| margin(n) + line + "\n").collect()
    }

    /// Commands, which are never broken: they are to be copied.
    fn commands(&self, label: &str, commands: impl IntoIterator<Item = impl AsRef<str>>) -> String {
        let mut text = String::new();
        for (n, command) in commands.into_iter().enumerate() {
            let command = command.as_ref();
            text += &match (n, self.prose < 60) {
                (0, true) => self.bold(label) + &self.indented(command),
                (_, true) => self.indented(command),
                (0, false) => self.paragraph(label, "").trim_end_matches('\n').to_string() + command + "\n",
                (_, false) => format!("{}{command}\n", " ".repeat(LABEL)),
            };
        }
        text
    }

    /// What the walk is, how its models are made, and how another differs.
    fn begin(&self, live: &mut Live) -> Result<()> {
        let walk = live.walk();
        let mut parts = vec![self.bold(&format!("{}  {}", walk.name, walk.title)), wrap(&walk.about, 0, self.prose)];
        if self.theirs {
            let differences = live.differences()?;
            parts.push(differences.iter().map(|line| self.paragraph("Differs", line)).collect());
        } else {
            let made = |made: &Made| self.paragraph("Model", &made.about) + &self.commands("Make", [&made.command()]);
            parts.extend(walk.models.iter().map(made));
            parts.push(wrap(MEMORY, 0, self.prose));
        }
        parts.push(wrap(LABELS, 0, self.prose) + &self.note());
        show::painted(&(parts.join("\n") + "\n"))
    }

    /// That sentences are written for the walk's own model and texts.
    fn note(&self) -> String {
        if self.other { format!("\n{}", wrap(OTHER, 0, self.prose)) } else { String::new() }
    }

    /// The steps, a line each.
    fn contents(&self, walk: &Walk) -> String {
        let rows = walk.steps.iter().enumerate();
        let rows: Vec<_> = rows.map(|(n, step)| [(n + 1).to_string(), step.id.clone(), step.section.clone()]).collect();
        left(&rows, if self.width == 0 { 0 } else { self.prose })
    }

    /// Prints the `n`-th step.
    fn print(&self, live: &mut Live, n: usize) -> Result<()> {
        let step = shown(live, n)?;
        show::painted(&self.text(live.walk(), &step))
    }

    /// A step, with an empty line behind it.
    fn text(&self, walk: &Walk, shown: &Shown) -> String {
        let step = &shown.step;
        let of = format!("{}/{}  {}", shown.number, walk.steps.len(), walk.name);
        let mut text = self.bold(&format!("{of}  {}", step.section));
        text += &wrap(&format!("{} ({})", step.title, step.id), 0, self.prose);
        if !step.formula.is_empty() {
            text += &format!("\n{}", self.indented(&wrap(&step.formula, INDENT, self.prose - INDENT)));
        }
        if !shown.shapes.is_empty() {
            let sizes = |sizes: &[usize]| sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
            let row = |row: &ShapeRow| [row.symbol.clone(), row.letters.clone(), sizes(&row.sizes)];
            let rows: Vec<_> = shown.shapes.iter().map(row).collect();
            text += &format!("\n{}", self.indented(&left(&rows, self.room())));
        }
        for (n, figure) in shown.figures.iter().enumerate() {
            let legend = self.legend(figure);
            let said_below = shown.figures.get(n + 1).is_some_and(|next| self.legend(next) == legend);
            text += &format!("\n{}", self.figure(figure));
            if !said_below {
                text += &self.indented(&legend);
            }
        }
        text += "\n";
        for note in &shown.notes {
            text += &self.paragraph("Differs", note);
        }
        text += &self.paragraph("See", &step.see);
        for erratum in &step.errata {
            let label = if erratum.id.starts_with('X') { "Elsewhere" } else { "Errs" };
            text += &self.paragraph(label, &format!("{} ({})", erratum.note, erratum.id));
        }
        for check in &shown.checks {
            let label = if check.printed.stands == As::Constructed { "Checked" } else { "Printed" };
            let begin = if check.holds { "" } else { "not met: " };
            text += &self.paragraph(label, &format!("{begin}{}", check.text));
        }
        text += &self.commands("Try", &step.commands);
        text + &self.commands("Refused", &step.refused) + "\n"
    }

    /// Room for what is shown.
    fn room(&self) -> usize {
        self.width.saturating_sub(INDENT)
    }

    /// What the colours of a heat map mean; it is said once below several.
    fn legend(&self, figure: &Figure) -> String {
        let legend = match &figure.view {
            View::Matrix(matrix) if figure.heat => matrix.legend(self.paint, self.prose - INDENT),
            _ => String::new(),
        };
        if legend.is_empty() { legend } else { format!("\n{legend}") }
    }

    fn figure(&self, figure: &Figure) -> String {
        let prose = self.prose - INDENT;
        let width = match &figure.view {
            View::Matrix(_) if figure.heat => prose,
            View::Sentence { .. } => prose,
            _ => self.room(),
        };
        let options = TableOptions { width, decimals: figure.decimals.into(), ..TableOptions::default() };
        let mut text = String::new();
        if let Some(picture) = &figure.picture {
            let mut what = format!("The document has a picture here ({:?}): {}.", picture.words, picture.what);
            if !picture.command.is_empty() {
                what += " To draw it:";
            }
            text += &wrap(&what, 0, prose);
            if !picture.command.is_empty() {
                text += &format!("  {}\n", picture.command);
            }
        }
        let titled = matches!(&figure.view,
            View::Matrix(matrix) if matrix.title() == figure.caption && (figure.heat || !matrix.index.is_empty()));
        if !figure.caption.is_empty() && !titled {
            text += &wrap(&show::spelled(&figure.caption), INDENT, prose);
        }
        text += &match &figure.view {
            View::Matrix(matrix) if figure.heat => matrix.heat(self.paint, &options), // its labels are spelled
            View::Grid(grid) => show::spelled(&grid.whole(options.width)).into_owned(),
            view => show::spelled(&view.text(None, &options)).into_owned(),
        };
        self.indented(&text)
    }

    /// Goes through the steps as the reader says.
    fn turn(&self, live: &mut Live) -> Result<()> {
        self.begin(live)?;
        show::out(&(self.contents(live.walk()) + "\n"))?;
        let count = live.walk().steps.len();
        let mut next = 0;
        let mut lines = std::io::stdin().lock().lines();
        loop {
            let what = if next < count { format!("Enter: step {} of {count}", next + 1) } else { "the end".into() };
            let others =
                if self.prose < 80 { "b, l, q, a number" } else { "b: back; a number or a name; l: list; q: quit" };
            show::out(&format!("{what}; {others} > "))?;
            let Some(line) = lines.next().transpose()? else { return show::out("\n") };
            let at = match line.trim() {
                "q" | "quit" => return Ok(()),
                "?" | "h" | "help" => Err(wrap(KEYS, 0, self.prose)),
                "l" | "list" => Err(self.contents(live.walk())),
                "" | "n" if next >= count => return Ok(()),
                "" | "n" => Ok(next),
                "b" | "back" => Ok(next.saturating_sub(2)),
                name => live.walk().find(name).map_err(|error| wrap(&error.to_string(), 0, self.prose) + "\n"),
            };
            match at {
                Ok(at) => {
                    show::out("\n")?;
                    self.print(live, at)?;
                    next = at + 1;
                }
                Err(help) => show::out(&help)?,
            }
        }
    }
}

/// Rows of words, all to the left; the last column is broken at spaces where a line would be longer than `width` (0 for
/// any), and goes to a line of its own where there is hardly room for it.
fn left(rows: &[[String; 3]], width: usize) -> String {
    let widest = |j: usize| rows.iter().map(|row| columns(&row[j])).max().unwrap_or(0);
    let (first, second) = (widest(0), widest(1));
    let fill = |cell: &str, width: usize| format!("{cell}{}  ", " ".repeat(width - columns(cell)));
    let line = |[a, b, c]: &[String; 3]| {
        let begin = fill(a, first) + &fill(b, second);
        let indent = columns(&begin);
        if width > 0 && indent + 12 > width {
            return wrap(begin.trim_end(), 6, width) + &format!("      {}", wrap(c, 6, width - 6));
        }
        wrap(&(begin + c), indent, width)
    };
    rows.iter().map(line).collect()
}
