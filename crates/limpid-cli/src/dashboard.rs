//! The dashboard of `train --ui`: curves, numbers, layers, the latest sample and the last lines, drawn on stderr by a
//! thread of its own, so that it answers keys and a new size of the window while a step takes its time. Without the
//! feature `ui`, without a terminal or in a tiny one there is none, and `show::Progress` says the same in lines.

use limpid::train::StepReport;

/// What is known after a step, beside the step.
pub struct Now {
    /// Mean training loss of the last [`RECENT`](limpid::train::RECENT) steps that have one.
    pub loss: Option<f64>,
    /// The last validation loss.
    pub val: Option<f64>,
    /// Tokens a second.
    pub per_second: f64,
    /// Share of the machine's roof, where that is known.
    pub share: Option<f64>,
    /// Seconds to the last step.
    pub left: f64,
    /// Of the time, the share that adding up gradients among processes adds to it, and the share in which that goes on
    /// while they compute; none of one process.
    pub all_reduce: Option<[f64; 2]>,
}

impl Now {
    /// A step and what is known after it, name and value.
    pub fn numbers(&self, step: &StepReport) -> Vec<(&'static str, String)> {
        use crate::show::{count, duration};
        let loss = |loss: Option<f64>| loss.map_or("-".into(), |v| format!("{v:.4}"));
        let mut numbers = vec![
            ("train loss", loss(self.loss)),
            ("val loss", loss(self.val)),
            ("lr", format!("{:.2e}", step.rate)),
            ("grad norm", step.norm.map_or("-".into(), |v| format!("{v:.3}"))),
            ("tok/s", count(self.per_second)),
        ];
        numbers.extend(self.share.map(|share| ("of roof", format!("{:.0}%", 100.0 * share))));
        numbers.push(("left", duration(self.left)));
        numbers
            .extend(self.all_reduce.map(|[seen, hidden]| {
                ("all-reduce", format!("{:.0}% (+{:.0}% hidden)", 100.0 * seen, 100.0 * hidden))
            }));
        numbers
    }
}

#[cfg(feature = "ui")]
pub use drawn::{Dashboard, active, restore};
#[cfg(not(feature = "ui"))]
pub use none::{Dashboard, active, restore};

#[cfg(feature = "ui")]
mod drawn {
    use super::Now;
    use crate::machine::ignores_closed_terminal;
    use crate::show::{bytes, commas, spelled};
    use limpid::memory::peak_rss;
    use limpid::train::{LayerUpdate, StepReport, log};
    use limpid_base::units::tick;
    use limpid_report::smoothed;
    use ratatui::backend::CrosstermBackend;
    use ratatui::crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
    use ratatui::crossterm::{cursor, execute};
    use ratatui::layout::{Constraint, Layout, Rect};
    use ratatui::prelude::{Color, Frame, Line, Span, Style, Stylize, Terminal};
    use ratatui::symbols::Marker;
    use ratatui::widgets::{Axis, Chart, Dataset, Gauge, GraphType, Paragraph, Wrap};
    use std::collections::VecDeque;
    #[cfg(unix)]
    use std::fs::File;
    #[cfg(unix)]
    use std::io::{ErrorKind, Read};
    use std::io::{IsTerminal, stderr};
    #[cfg(unix)]
    use std::os::fd::AsFd;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, MutexGuard, Once};
    use std::thread::JoinHandle;
    use std::time::Duration;

    /// Least columns and rows that a dashboard is worth.
    const TINY: (u16, u16) = (32, 8);

    /// Whether the terminal is ours to restore.
    static OURS: AtomicBool = AtomicBool::new(false);

    /// What is drawn.
    #[derive(Default)]
    struct Screen {
        title: String,
        steps: u64,
        step: u64,
        numbers: Vec<(&'static str, String)>,
        train: Vec<(f64, f64)>,
        /// Steps that a point of `train` stands for, and the losses of those that have no point yet.
        every: usize,
        pending: Vec<f64>,
        val: Vec<(f64, f64)>,
        floor: Option<f64>,
        layers: Vec<LayerUpdate>,
        sample: Option<(u64, String)>,
        lines: VecDeque<String>,
    }

    /// The screen, and the thread that draws it.
    pub struct Dashboard {
        screen: Arc<Mutex<Screen>>,
        over: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    }

    impl Dashboard {
        /// Takes the terminal over, if there is one that is large enough. `q` and Ctrl-C set `asked`. Curves begin with
        /// what the run's folder tells; `title` stands at the foot.
        pub fn open(
            (folder, title): (&Path, String),
            steps: u64,
            floor: Option<f64>,
            asked: Arc<AtomicBool>,
        ) -> Option<Dashboard> {
            let (columns, rows) = terminal::size().ok()?;
            if !stderr().is_terminal() || columns < TINY.0 || rows < TINY.1 {
                return None;
            }
            let mut screen = Screen { title, steps, floor, every: 1, ..Screen::default() };
            for line in log::read(folder).unwrap_or_default() {
                let step = line["step"].as_u64().unwrap_or_default();
                line["train_loss"].as_f64().into_iter().for_each(|loss| screen.add(step, loss));
                screen.val.extend(line["val_loss"].as_f64().map(|loss| (step as f64, loss)));
            }
            static HOOK: Once = Once::new();
            HOOK.call_once(|| {
                let before = std::panic::take_hook();
                std::panic::set_hook(Box::new(move |panic| {
                    restore();
                    before(panic);
                }));
            });
            terminal::enable_raw_mode().ok()?;
            OURS.store(true, Ordering::SeqCst);
            if execute!(stderr(), EnterAlternateScreen, Clear(ClearType::All), cursor::Hide).is_err() {
                restore();
                return None;
            }
            let (screen, over) = (Arc::new(Mutex::new(screen)), Arc::new(AtomicBool::new(false)));
            let (drawn, ended) = (screen.clone(), over.clone());
            let thread = std::thread::Builder::new().spawn(move || draw(&drawn, &ended, &asked));
            let Ok(thread) = thread else {
                restore();
                return None;
            };
            Some(Dashboard { screen, over, thread: Some(thread) })
        }

        fn screen(&self) -> MutexGuard<'_, Screen> {
            self.screen.lock().unwrap_or_else(|e| e.into_inner())
        }

        /// A step was done.
        pub fn step(&self, step: &StepReport, now: &Now) {
            let mut screen = self.screen();
            screen.step = step.step;
            screen.numbers = now.numbers(step);
            screen.numbers.extend(peak_rss().map(|n| ("memory", bytes(n))));
            step.loss.into_iter().for_each(|loss| screen.add(step.step, loss));
        }

        /// The validation loss after a step.
        pub fn validated(&self, step: u64, loss: f64) {
            self.screen().val.push((step as f64, loss));
        }

        /// What a step's update did to each layer.
        pub fn layers(&self, layers: Vec<LayerUpdate>) {
            self.screen().layers = layers;
        }

        /// What the weights of a step wrote.
        pub fn sample(&self, step: u64, text: &str) {
            self.screen().sample = Some((step, spelled(text).replace('\t', " ")));
        }

        /// Something to be read.
        pub fn line(&self, text: &str) {
            let mut screen = self.screen();
            screen.lines.push_back(text.into());
            if screen.lines.len() > 50 {
                screen.lines.pop_front();
            }
        }
    }

    impl Drop for Dashboard {
        fn drop(&mut self) {
            self.over.store(true, Ordering::SeqCst);
            if let Some(thread) = self.thread.take() {
                let _ = thread.join();
            }
            restore();
        }
    }

    /// Whether the terminal is taken over: what is printed would stand in the picture.
    pub fn active() -> bool {
        OURS.load(Ordering::SeqCst)
    }

    /// Gives the terminal back as it was; done once.
    pub fn restore() {
        if OURS.swap(false, Ordering::SeqCst) {
            let _ = execute!(stderr(), LeaveAlternateScreen, cursor::Show);
            let _ = terminal::disable_raw_mode();
        }
    }

    impl Screen {
        /// A point more; where there are thousands, two become one.
        fn add(&mut self, step: u64, loss: f64) {
            self.pending.push(loss);
            if self.pending.len() < self.every {
                return;
            }
            let mean = self.pending.iter().sum::<f64>() / self.pending.len() as f64;
            self.train.push((step as f64, mean));
            self.pending.clear();
            if self.train.len() > 4000 {
                self.train = self
                    .train
                    .chunks(2)
                    .map(|p| (p[p.len() - 1].0, p.iter().map(|q| q.1).sum::<f64>() / p.len() as f64))
                    .collect();
                self.every *= 2;
            }
        }
    }

    /// Draws until it is over or nobody can see it. A key is answered at once, the rest five times a second.
    fn draw(screen: &Mutex<Screen>, over: &AtomicBool, asked: &AtomicBool) {
        let Ok(mut terminal) = Terminal::new(CrosstermBackend::new(stderr())) else { return };
        let mut keys = Keys::open();
        while !over.load(Ordering::SeqCst) {
            let stopping = asked.load(Ordering::SeqCst);
            let _ = terminal.draw(|frame| view(frame, &screen.lock().unwrap_or_else(|e| e.into_inner()), stopping));
            match keys.wait(Duration::from_millis(200)) {
                Typed::Nothing => {}
                Typed::Stop if asked.swap(true, Ordering::SeqCst) => {
                    restore();
                    std::process::exit(130);
                }
                Typed::Stop => {}
                // SIGHUP says the same, but only to the processes that the terminal controls
                Typed::Closed => {
                    asked.fetch_or(!ignores_closed_terminal(), Ordering::SeqCst);
                    return;
                }
            }
        }
    }

    /// What was typed.
    enum Typed {
        Nothing,
        /// `q` or Ctrl-C.
        Stop,
        /// The terminal is closed, which crossterm does not report.
        #[cfg_attr(not(unix), allow(dead_code))]
        Closed,
    }

    /// The keyboard: stdin, or the terminal of the process where stdin is none. crossterm's reader is not used, because
    /// it never returns from a terminal that is closed.
    #[cfg(unix)]
    struct Keys(Option<File>);

    #[cfg(unix)]
    impl Keys {
        fn open() -> Keys {
            let stdin = std::io::stdin();
            let own = stdin.is_terminal().then(|| stdin.as_fd().try_clone_to_owned().map(File::from));
            Keys(own.unwrap_or_else(|| File::open("/dev/tty")).ok())
        }

        fn wait(&mut self, most: Duration) -> Typed {
            use rustix::event::{PollFd, PollFlags, poll};
            let screen = stderr();
            let mut both = vec![PollFd::new(&screen, PollFlags::empty())]; // it reports that it is closed all the same
            both.extend(self.0.as_ref().map(|keys| PollFd::new(keys, PollFlags::IN)));
            let most = most.try_into().expect("less than a second");
            if poll(&mut both, Some(&most)).is_err() {
                return Typed::Nothing; // a signal
            }
            let found: Vec<PollFlags> = both.iter().map(PollFd::revents).collect();
            if found.iter().any(|found| found.intersects(PollFlags::HUP | PollFlags::ERR)) {
                return Typed::Closed;
            }
            let Some((keys, found)) = self.0.as_mut().zip(found.get(1)) else { return Typed::Nothing };
            if found.contains(PollFlags::NVAL) {
                self.0 = None; // no keys can be read here
            } else if found.contains(PollFlags::IN) {
                let mut typed = [0; 64];
                return match keys.read(&mut typed) {
                    Ok(0) => Typed::Closed,
                    // what begins with an escape is an arrow or the like
                    Ok(n) if typed[0] != b'\x1b' && typed[..n].iter().any(|key| matches!(key, b'q' | b'\x03')) => {
                        Typed::Stop
                    }
                    Ok(_) => Typed::Nothing,
                    Err(error) if error.kind() == ErrorKind::Interrupted => Typed::Nothing,
                    Err(_) => Typed::Closed,
                };
            }
            Typed::Nothing
        }
    }

    /// The keyboard, as crossterm reads it.
    #[cfg(not(unix))]
    struct Keys;

    #[cfg(not(unix))]
    impl Keys {
        fn open() -> Keys {
            Keys
        }

        fn wait(&mut self, most: Duration) -> Typed {
            use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
            match poll(most) {
                Ok(true) => match read() {
                    Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => match key.code {
                        KeyCode::Char('q') => Typed::Stop,
                        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Typed::Stop,
                        _ => Typed::Nothing,
                    },
                    _ => Typed::Nothing,
                },
                Ok(false) => Typed::Nothing,
                Err(_) => {
                    std::thread::sleep(most); // no keys can be read here
                    Typed::Nothing
                }
            }
        }
    }

    fn dim() -> Style {
        Style::new().add_modifier(ratatui::style::Modifier::DIM)
    }

    fn view(frame: &mut Frame, screen: &Screen, stopping: bool) {
        let area = frame.area();
        let mut numbers = vec![Line::default()];
        for (name, value) in &screen.numbers {
            let wide = name.len() + value.len() + 4;
            if numbers.last().is_some_and(|line| line.width() + wide > usize::from(area.width) + 3) {
                numbers.push(Line::default());
            }
            let parts = [Span::styled(format!("{name} "), dim()), format!("{value}   ").bold()];
            numbers.last_mut().into_iter().for_each(|line| line.spans.extend(parts.clone()));
        }
        let tall = numbers.len() as u16;
        let rows = [Constraint::Length(1), Constraint::Length(tall), Constraint::Min(3), Constraint::Length(1)];
        let [head, middle, body, foot] = Layout::vertical(rows).areas(area);
        let share = (screen.step as f64 / screen.steps.max(1) as f64).clamp(0.0, 1.0);
        let label = format!("step {} of {}  {:.0}%", commas(screen.step), commas(screen.steps), 100.0 * share);
        frame.render_widget(Gauge::default().ratio(share).label(label).gauge_style(Color::Blue), head);
        frame.render_widget(Paragraph::new(numbers), middle);
        panels(frame, screen, body);
        let keys = if stopping { "stopping after this step; once more to stop at once" } else { "q: save and stop" };
        frame.render_widget(Line::styled(format!("{keys}   {}", screen.title), dim()), foot);
    }

    /// The curves, and what there is room for: layers, the sample and the last lines beside them or below.
    fn panels(frame: &mut Frame, screen: &Screen, area: Rect) {
        let layers = if screen.layers.is_empty() { 0 } else { screen.layers.len() as u16 + 2 };
        if area.height < 12 {
            return curves(frame, screen, area);
        }
        let said = (area.height / 5).clamp(3, 10);
        if area.width >= 100 {
            let side = (area.width / 3).clamp(40, 60);
            let columns = [Constraint::Fill(1), Constraint::Length(2), Constraint::Length(side)];
            let [left, _, right] = Layout::horizontal(columns).areas(area);
            let few = said.min(screen.lines.len().max(2) as u16);
            let [chart, lines] = Layout::vertical([Constraint::Fill(1), Constraint::Length(few)]).areas(left);
            let rows = [Constraint::Length(layers.min(area.height * 3 / 5)), Constraint::Fill(1)];
            let [table, text] = Layout::vertical(rows).areas(right);
            curves(frame, screen, chart);
            last_lines(frame, screen, lines);
            table_of_layers(frame, screen, table);
            return sample(frame, screen, text);
        }
        let layers = if area.height >= 26 { layers.min(area.height / 4) } else { 0 };
        let rows = [Constraint::Fill(1), Constraint::Length(layers), Constraint::Length(said)];
        let [chart, table, foot] = Layout::vertical(rows).areas(area);
        curves(frame, screen, chart);
        table_of_layers(frame, screen, table);
        let halves = [Constraint::Fill(1), Constraint::Length(2), Constraint::Fill(1)];
        let [left, _, right] = match (&screen.sample, area.width >= 64) {
            (None, _) => [foot, Rect::ZERO, Rect::ZERO],
            (_, true) => Layout::horizontal(halves).areas(foot),
            (_, false) => {
                Layout::vertical([Constraint::Length(1), Constraint::Length(0), Constraint::Fill(1)]).areas(foot)
            }
        };
        last_lines(frame, screen, left);
        sample(frame, screen, right);
    }

    fn last_lines(frame: &mut Frame, screen: &Screen, area: Rect) {
        let last = screen.lines.iter().skip(screen.lines.len().saturating_sub(area.height.into()));
        frame.render_widget(Paragraph::new(last.map(|line| Line::from(line.as_str())).collect::<Vec<_>>()), area);
    }

    /// What the kept weights write.
    fn sample(frame: &mut Frame, screen: &Screen, area: Rect) {
        let Some((step, text)) = screen.sample.as_ref().filter(|_| area.height > 1) else { return };
        let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
        frame.render_widget(Line::styled(format!("sample after step {}", commas(*step)), dim()), head);
        frame.render_widget(Paragraph::new(text.as_str()).wrap(Wrap { trim: false }), body);
    }

    /// A row a layer: its gradient's norm with a bar beside the others', and how much of its weights an update is. Of
    /// more layers than rows, as many from the first to the last.
    fn table_of_layers(frame: &mut Frame, screen: &Screen, area: Rect) {
        let all = screen.layers.len();
        let room = usize::from(area.height.saturating_sub(2));
        if all == 0 || room == 0 {
            return;
        }
        let rows = all.min(room);
        let shown: Vec<usize> = (0..rows).map(|i| i * (all - 1) / (rows - 1).max(1)).collect();
        let name = shown.iter().map(|i| screen.layers[*i].layer.chars().count()).max().unwrap_or(0).max(5);
        let bar = usize::from(area.width).saturating_sub(name + 28).min(20);
        let greatest = screen.layers.iter().map(|l| l.grad_norm).fold(f64::MIN_POSITIVE, f64::max);
        let head = format!("{:<name$}  {:>8} {:bar$}  update/weights", "layer", "gradient", "");
        let small = |v: f64| if v >= 0.01 { format!("{v:.3}") } else { format!("{v:.1e}") };
        let row = |i: &usize| {
            let LayerUpdate { layer, grad_norm, update_ratio, .. } = &screen.layers[*i];
            let eighths = ((grad_norm / greatest * 8.0 * bar as f64).round() as usize).min(8 * bar);
            let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
            let drawn = "█".repeat(eighths / 8) + part;
            Line::from(vec![
                Span::raw(format!("{layer:<name$}  {:>8} ", small(*grad_norm))),
                Span::styled(format!("{drawn:<bar$}"), Color::Cyan),
                Span::raw(format!("  {update_ratio:>14.1e}")),
            ])
        };
        let rows = std::iter::once(Line::styled(head, dim())).chain(shown.iter().map(row));
        frame.render_widget(Paragraph::new(rows.collect::<Vec<_>>()), area);
    }

    /// Losses against steps; y goes as far as what came after the first steps, so that there is something to see.
    fn curves(frame: &mut Frame, screen: &Screen, area: Rect) {
        let train = smoothed(&screen.train);
        let last = (screen.step as f64).max(screen.train.last().map_or(1.0, |p| p.0));
        let later = || train.iter().chain(&screen.val).filter(|p| p.0 >= 0.05 * last).map(|p| p.1);
        let (low, high) = (later().fold(f64::INFINITY, f64::min), later().fold(f64::NEG_INFINITY, f64::max));
        if !low.is_finite() || !high.is_finite() {
            return frame.render_widget(Line::from("waiting for the first step"), area);
        }
        // a floor that is far away would flatten the curves
        let floor = screen.floor.filter(|floor| *floor > low - (high - low));
        let low = floor.map_or(low, |floor| low.min(floor));
        let room = (0.04 * (high - low)).max(1e-6);
        let (low, high) = (low - room, high + room);
        let floor: Vec<(f64, f64)> =
            floor.iter().flat_map(|f| (0..=100).map(|i| (last * f64::from(i) / 100.0, *f))).collect();
        let set = |points, colour, marker, graph| {
            Dataset::default().data(points).marker(marker).graph_type(graph).style(Style::new().fg(colour))
        };
        let (train_colour, val_colour, floor_colour) = (Color::Cyan, Color::Yellow, Color::Green);
        let mut sets = vec![
            set(&screen.train[..], Color::DarkGray, Marker::Braille, GraphType::Scatter),
            set(&train[..], train_colour, Marker::Braille, GraphType::Line),
            set(&floor, floor_colour, Marker::Braille, GraphType::Scatter),
            set(&screen.val, val_colour, Marker::Braille, GraphType::Line),
        ];
        // each evaluation has a mark of its own over the lines, as long as marks do not run into one
        if screen.val.len() * 2 <= usize::from(area.width) {
            sets.push(set(&screen.val, val_colour, Marker::Dot, GraphType::Scatter));
        }
        let kinds = [
            (true, "⠒⠒", "training", train_colour),
            (!screen.val.is_empty(), "•", "validation", val_colour),
            (!floor.is_empty(), "⠂⠂", "floor", floor_colour),
        ];
        let mut names = vec![];
        for (_, key, name, colour) in kinds.into_iter().filter(|(there, ..)| *there) {
            names.extend([Span::styled(format!("  {key} "), colour), Span::raw(name)]);
        }
        if area.width >= 60 {
            names.insert(2, Span::styled(", smoothed", dim()));
        }
        let [head, area] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
        frame.render_widget(Line::from(names).right_aligned(), head);
        let middle = (low + high) / 2.0;
        let labels = |values: [f64; 3]| values.map(|v| Line::from(format!("{v:.3}")));
        let steps = [0.0, last / 2.0, last].map(|v| Line::from(tick(v.round(), last)));
        let chart = Chart::new(sets)
            .x_axis(Axis::default().bounds([0.0, last]).labels(steps))
            .y_axis(Axis::default().bounds([low, high]).labels(labels([low, middle, high])))
            .legend_position(None);
        frame.render_widget(chart, area);
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use ratatui::backend::TestBackend;

        #[test]
        fn every_size_shows_where_the_run_stands() {
            let mut screen =
                Screen { title: "runs/x".into(), steps: 20_000, every: 1, floor: Some(0.3), ..Screen::default() };
            (1..=10_000).for_each(|n| screen.add(n, 1.0 + 100.0 / n as f64));
            assert!(screen.train.len() <= 4000 && screen.train.last().is_some_and(|p| p.0 > 9990.0));
            screen.step = 10_000;
            screen.val = vec![(5000.0, 1.5), (10_000.0, 1.25)];
            let (loss, val) = (Some(1.01), Some(1.25));
            let now = Now { loss, val, per_second: 30_700.0, share: Some(0.57), left: 12.5, all_reduce: None };
            screen.numbers =
                now.numbers(&StepReport { step: 10_000, loss: Some(1.01), norm: Some(0.5), rate: 1e-3, tokens: 768 });
            screen.lines.push_back("step 10000: val loss 1.2500 on 20,032 tokens".into());
            let update = |i: usize| LayerUpdate {
                layer: format!("blocks.{i}"),
                grad_norm: 0.5 / (i + 1) as f64,
                weight_norm: 2.0,
                update_ratio: 1e-3,
            };
            screen.layers = (0..24).map(update).collect();
            screen.sample = Some((5000, "Once upon\u{1b}[31m a time\nthere was".into()));
            for (columns, rows) in [(80, 24), (40, 12), (40, 20), (120, 40), (200, 50), (33, 8), (10, 3)] {
                let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
                terminal.draw(|frame| view(frame, &screen, false)).unwrap();
                let seen: String = terminal.backend().buffer().content().iter().map(|cell| cell.symbol()).collect();
                let told = ["step 10,000 of 20,000  50%", "train loss 1.0100", "val loss 1.2500", "q: save and stop"];
                assert!(columns < 33 || told.iter().all(|word| seen.contains(word)), "{columns}x{rows}: {seen}");
                let tall = rows >= 18;
                assert_eq!(tall, seen.contains("val loss 1.2500 on"), "{columns}x{rows}: {seen}");
                assert_eq!(
                    tall,
                    seen.contains("sample after step 5,000") && seen.contains("Once upon"),
                    "{columns}x{rows}: {seen}"
                );
                // from the first layer to the last, as many as there are rows for
                assert_eq!(
                    rows >= 30,
                    seen.contains("blocks.0 ") && seen.contains("blocks.23 "),
                    "{columns}x{rows}: {seen}"
                );
                assert_eq!(rows >= 50, seen.contains("blocks.11 "), "{columns}x{rows}: {seen}");
                // the evaluations are marked over the lines: both, and the one of the legend
                assert!(columns < 40 || seen.matches('•').count() == 3, "{columns}x{rows}: {seen}");
            }
            // of several processes
            let now = Now { all_reduce: Some([0.034, 0.121]), share: None, ..now };
            screen.numbers =
                now.numbers(&StepReport { step: 10_000, loss: Some(1.01), norm: Some(0.5), rate: 1e-3, tokens: 768 });
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
            terminal.draw(|frame| view(frame, &screen, false)).unwrap();
            let seen: String = terminal.backend().buffer().content().iter().map(|cell| cell.symbol()).collect();
            assert!(seen.contains("all-reduce 3% (+12% hidden)") && !seen.contains("of roof"), "{seen}");
        }
    }
}

#[cfg(not(feature = "ui"))]
mod none {
    use super::Now;
    use limpid::train::{LayerUpdate, StepReport};
    use std::path::Path;
    use std::sync::{Arc, atomic::AtomicBool};

    /// None: this binary was built without it.
    pub enum Dashboard {}

    impl Dashboard {
        /// None.
        pub fn open(_: (&Path, String), _: u64, _: Option<f64>, _: Arc<AtomicBool>) -> Option<Dashboard> {
            None
        }
        /// Nobody is told.
        pub fn step(&self, _: &StepReport, _: &Now) {}
        /// Nobody is told.
        pub fn validated(&self, _: u64, _: f64) {}
        /// Nobody is told.
        pub fn layers(&self, _: Vec<LayerUpdate>) {}
        /// Nobody is told.
        pub fn sample(&self, _: u64, _: &str) {}
        /// Nobody is told.
        pub fn line(&self, _: &str) {}
    }

    /// No dashboard has the terminal.
    pub fn active() -> bool {
        false
    }

    /// There is nothing to give back.
    pub fn restore() {}
}
