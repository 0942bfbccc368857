//! Results as Markdown tables, for terminals and documents.

use std::fmt;

pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(header: [&str; N]) -> Self {
        Self { header: header.map(str::to_owned).to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.header.len());
        self.rows.push(cells.to_vec());
    }
}

impl fmt::Display for Table {
    /// The first column has text, the others have numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(&self.header).chain(&self.rows);
        let widths: Vec<_> = (0..self.header.len())
            .map(|column| lines().map(|cells| cells[column].chars().count()).max().unwrap_or_default())
            .collect();
        for (number, cells) in lines().enumerate() {
            for (column, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
                if column == 0 { write!(f, "| {cell:<width$} ")? } else { write!(f, "| {cell:>width$} ")? }
            }
            writeln!(f, "|")?;
            if number == 0 {
                for (column, &width) in widths.iter().enumerate() {
                    let (rule, end) = ("-".repeat(width + 1), if column == 0 { '-' } else { ':' });
                    write!(f, "|{rule}{end}")?;
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

/// Formats a number with commas between thousands.
pub(crate) fn whole(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut grouped = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
