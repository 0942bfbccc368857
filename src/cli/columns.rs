//! Tables that fit the terminal: plain columns, two blanks apart, also readable through a pipe.
//!
//! A table that is too wide is narrowed step by step: ids are shortened, long cells are cut, the least important
//! columns are left out, and the last column is wrapped. If the output is not a terminal, or with `--wide`, the table
//! is complete.

use std::io::IsTerminal;

use rustix::termios::tcgetwinsize;

/// The maximum length of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Width(Option<usize>);

impl Width {
    pub(super) const UNLIMITED: Width = Width(None);

    #[cfg(test)]
    pub(super) fn of(columns: usize) -> Self {
        Width(Some(columns))
    }

    /// Returns the width of the terminal on standard output. The variable COLUMNS overrides it.
    pub(super) fn of_terminal() -> Self {
        let stated = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let found = || {
            let stdout = std::io::stdout();
            let size = stdout.is_terminal().then(|| tcgetwinsize(&stdout).ok()).flatten()?;
            Some(usize::from(size.ws_col))
        };
        Width(stated.or_else(found).filter(|columns| *columns > 0))
    }

    /// Wraps a text that is indented by `indent` columns.
    pub(super) fn wrap(self, text: &str, indent: usize) -> Vec<&str> {
        wrapped(text, self.0.map_or(usize::MAX, |width| width.saturating_sub(indent).max(NARROWEST)))
    }
}

/// The number of blanks between columns.
const GAP: usize = 2;

/// The length to which a cell is cut if the table is too wide.
const LONGEST_CELL: usize = 20;

/// The minimum width of the wrapped last column.
const NARROWEST: usize = 16;

/// The name of a column and its rank. The column with the highest rank is left out first; rank 0 always stays.
pub(super) type Column = (&'static str, u8);

/// A table under construction.
#[derive(Debug)]
pub(super) struct Columns {
    ranks: Vec<u8>,
    has_header: bool,
    rows: Vec<Vec<String>>,
    /// A column and its shortened cells.
    short: Option<(usize, Vec<String>)>,
}

impl Columns {
    pub(super) fn new(columns: &[Column]) -> Self {
        let header = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let ranks = columns.iter().map(|(_, rank)| *rank).collect();
        Self { ranks, has_header: true, rows: vec![header], short: None }
    }

    /// Returns a table of names and values.
    pub(super) fn pairs() -> Self {
        Self::without_header(2)
    }

    /// Returns a table in which all columns stay.
    pub(super) fn without_header(count: usize) -> Self {
        Self { ranks: vec![0; count], has_header: false, rows: Vec::new(), short: None }
    }

    pub(super) fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Shortens a column if the table is too wide. `short` maps the cells below the header to shorter ones.
    pub(super) fn shorten(&mut self, column: usize, short: impl FnOnce(&[String]) -> Vec<String>) {
        let cells: Vec<_> = self.rows[usize::from(self.has_header)..].iter().map(|row| row[column].clone()).collect();
        self.short = Some((column, short(&cells)));
    }

    pub(super) fn text(mut self, width: Width) -> String {
        if let Width(Some(width)) = width {
            self.narrow(width);
        }
        let widths = self.widths();
        let indent: usize = widths.iter().rev().skip(1).map(|width| width + GAP).sum();
        let mut text = String::new();
        for row in &self.rows {
            let Some((last, first)) = row.split_last() else { continue };
            let mut line = String::new();
            for (cell, width) in first.iter().zip(&widths) {
                line += &format!("{cell:<width$}{:GAP$}", "");
            }
            for (index, part) in width.wrap(last, indent).into_iter().enumerate() {
                let before = if index == 0 { line.clone() } else { " ".repeat(indent) };
                text += (before + part).trim_end();
                text.push('\n');
            }
        }
        text
    }

    fn narrow(&mut self, width: usize) {
        let is_too_wide = |table: &Self| table.widths().iter().map(|width| width + GAP).sum::<usize>() - GAP > width;
        if let Some((column, short)) = self.short.take()
            && is_too_wide(self)
        {
            for (row, short) in self.rows.iter_mut().skip(usize::from(self.has_header)).zip(short) {
                row[column] = short;
            }
        }
        if is_too_wide(self) {
            let last = self.ranks.len() - 1;
            for row in &mut self.rows {
                let long = row.iter_mut().enumerate().filter(|(column, _)| self.ranks[*column] > 0 && *column < last);
                long.for_each(|(_, cell)| cut(cell));
            }
        }
        while is_too_wide(self) {
            let Some(rank) = self.ranks.iter().copied().max().filter(|rank| *rank > 0) else { break };
            let column = self.ranks.iter().rposition(|of| *of == rank).unwrap_or_default();
            self.ranks.remove(column);
            for row in &mut self.rows {
                row.remove(column);
            }
        }
    }

    fn widths(&self) -> Vec<usize> {
        let of = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        (0..self.ranks.len()).map(of).collect()
    }
}

fn cut(cell: &mut String) {
    if cell.chars().count() > LONGEST_CELL {
        *cell = cell.chars().take(LONGEST_CELL - 1).chain(['…']).collect();
    }
}

/// Splits a text into lines of whole words. A word that is longer than a line stays whole.
fn wrapped(text: &str, width: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while rest.chars().count() > width {
        let end = rest.char_indices().nth(width).map_or(rest.len(), |(index, _)| index);
        // A blank right after the line also ends it.
        let within = rest[..end].rfind(' ').filter(|_| !rest[end..].starts_with(' '));
        let blank = match within {
            Some(blank) => blank,
            None => match rest[end..].find(' ') {
                Some(beyond) => end + beyond,
                None => break,
            },
        };
        lines.push(rest[..blank].trim_end());
        rest = rest[blank..].trim_start();
    }
    lines.push(rest);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Columns {
        let mut table = Columns::new(&[("ID", 0), ("AGENT", 2), ("AGE", 1), ("MESSAGE", 0)]);
        table.row(["0123456789abcdef", "a very long name of an agent", "1m", "all is well with this one"]);
        table.row(["fedcba9876543210", "b", "2m", "-"]);
        table.shorten(0, |ids| ids.iter().map(|id| id[..4].to_owned()).collect());
        table
    }

    #[test]
    fn a_table_is_as_wide_as_it_needs_to_be_where_there_is_room() {
        let wide = "ID                AGENT                         AGE  MESSAGE\n\
                    0123456789abcdef  a very long name of an agent  1m   all is well with this one\n\
                    fedcba9876543210  b                             2m   -\n";
        assert_eq!(table().text(Width::UNLIMITED), wide);
        assert_eq!(table().text(Width::of(78)), wide);
    }

    #[test]
    fn a_table_that_is_too_wide_is_narrowed_step_by_step() {
        let at = |width| table().text(Width::of(width)).lines().nth(1).unwrap_or_default().to_owned();
        assert_eq!(at(77), "0123  a very long name of an agent  1m   all is well with this one");
        assert_eq!(at(60), "0123  a very long name of…  1m   all is well with this one");
        assert_eq!(at(50), "0123  1m   all is well with this one");
        assert_eq!(at(32), "0123  all is well with this one");
        assert_eq!(table().text(Width::of(22)), "ID    MESSAGE\n0123  all is well with\n      this one\nfedc  -\n");
    }

    #[test]
    fn words_are_never_broken() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("/a/very/long/path and more", 8), ["/a/very/long/path", "and more"]);
        assert_eq!(wrapped("", 5), [""]);
    }
}
